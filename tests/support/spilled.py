"""Values of columns in a temporary file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.evaluation.spilled_columns import SpilledColumns


def values_of(columns: SpilledColumns[Any]) -> npt.NDArray[Any]:
    """Return all values [rows, ...]."""
    values = [columns.column(*index) for index in np.ndindex(columns.shape)]
    return np.stack(values, 1).reshape(len(columns), *columns.shape)
