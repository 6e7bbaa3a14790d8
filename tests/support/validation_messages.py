"""Messages of invalid configurations."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ranking.schema.validation_errors import format_validation_error


def validation_message(model: type[BaseModel], data: Any) -> str:
    """Validate invalid data and return the message for the user."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(data)
    return format_validation_error(caught.value, data, model)
