"""Statistics of one column in the sample, from which its role and kind are guessed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.dedup import value_hashes

Codes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

LARGEST_INTEGER = 2.0**63
"""Floats below this size that have no fraction are integers, as pandas writes them if a column has nulls."""


class ColumnProfile:
    """One column of the sample.

    Args:
        name: name of the column.
        column: its values.

    Attributes:
        values: the values [rows], without dictionary encoding.
        kind: ``integer``, ``number``, ``text``, ``boolean``, ``time``, ``list`` (of ids), ``null`` or ``nested`` (all
            other types).
    """

    def __init__(self, name: str, column: pa.ChunkedArray) -> None:
        self.name = name
        values = column.combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        self.values: pa.Array = values
        self.rows = len(values)
        self.nulls: int = values.null_count
        self.kind = "null" if self.nulls == self.rows else self._kind()

    def _kind(self) -> str:
        dtype = self.values.type
        if pa.types.is_boolean(dtype):
            return "boolean"
        if pa.types.is_integer(dtype):
            return "integer"
        if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
            numbers = self.numbers[~np.isnan(self.numbers)]
            whole = len(numbers) and np.all((np.abs(numbers) < LARGEST_INTEGER) & (numbers == np.floor(numbers)))
            return "integer" if whole else "number"
        if _is_text(dtype):
            return "text"
        if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
            return "time"
        if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
            return "list" if pa.types.is_integer(dtype.value_type) or _is_text(dtype.value_type) else "nested"
        return "nested"

    @cached_property
    def numbers(self) -> Numbers:
        """Values as numbers [rows]; NaN where null."""
        values = self.values
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        numbers: Numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return numbers

    @cached_property
    def finite(self) -> Numbers:
        """Finite numbers of the column, in its order."""
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def not_finite(self) -> int:
        """Number of NaN and infinite numbers."""
        return self.rows - self.nulls - len(self.finite) if self.kind in ("integer", "number") else 0

    @cached_property
    def codes(self) -> Codes:
        """Number of the distinct value of each row, from 0 [rows]; −1 where null."""
        if self.kind == "nested":
            _, codes = np.unique([repr(value) for value in self.values.to_pylist()], return_inverse=True)
        else:
            _, codes = np.unique(value_hashes(self.values), return_inverse=True)
        valid = self.values.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, codes, -1).astype(np.int64)

    @cached_property
    def distinct(self) -> int:
        """Number of distinct values that are not null."""
        return len(np.unique(self.codes[self.codes >= 0]))

    @property
    def known(self) -> int:
        """Number of values that are not null."""
        return self.rows - self.nulls

    @property
    def unique(self) -> bool:
        """Whether every row has a different value."""
        return self.rows > 1 and self.distinct == self.rows

    @property
    def binary(self) -> bool:
        """Whether the column has exactly two distinct values, such as 0 and 1 or yes and no."""
        return self.kind in ("integer", "number", "text", "boolean") and self.distinct == 2 and not self.not_finite

    def counts(self) -> list[tuple[Any, int]]:
        """Return the distinct values that are not null with their numbers of rows, the most frequent first."""
        counted = pc.value_counts(self.values.drop_null()).to_pylist()
        return sorted(((entry["values"], entry["counts"]) for entry in counted), key=lambda pair: -pair[1])

    def describe(self) -> str:
        """Return the number of distinct values, and the share of nulls if there are any, for a comment."""
        text = f"{self.distinct:,} distinct value{'s' if self.distinct != 1 else ''}"
        return text + (f", {self.nulls / self.rows:.1%} null" if self.nulls else "")


def profile_columns(table: pa.Table) -> dict[str, ColumnProfile]:
    """Return the profile of each column, in the order of the table."""
    return {name: ColumnProfile(name, table[name]) for name in table.column_names}


def _is_text(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))
