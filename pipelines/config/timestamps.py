"""A moment as a document says it: where time splits a log."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

MOMENTS = "must be a date or a moment, such as 2026-01-09 or 2026-01-09T06:00:00"


def parse_timestamp(written: Any) -> datetime:
    """A date as its first moment; text as ISO 8601 has it.

    Raises:
        PydanticCustomError: it is neither.
    """
    if isinstance(written, datetime):
        return written
    if isinstance(written, date):
        return datetime.combine(written, time())
    try:
        return datetime.fromisoformat(written)
    except (TypeError, ValueError):
        raise PydanticCustomError("moment", MOMENTS) from None


Timestamp = Annotated[datetime, BeforeValidator(parse_timestamp)]
"""A date or a date with a time, with or without a zone."""
