"""Which row of an embedding table a value gets: by vocabulary, by hash, or by the bucket that a number lies in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.columns import as_type

IdArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MISSING = 0
"""Embedding row of a value that is not known."""
OOV = 1
"""Embedding row of a value that the vocabulary does not hold."""


class Vocabulary:
    """Known ids of one embedding table, most frequent first; row 0 is missing, row 1 unseen, then the ids.

    Args:
        ids: int64 or string, without nulls or repeats.
    """

    def __init__(self, ids: pa.Array) -> None:
        self.ids = ids
        self._row: dict[Any, int] = {value: row for row, value in enumerate(ids.to_pylist(), start=OOV + 1)}
        self._row[None] = MISSING
        self._kind = int if pa.types.is_integer(ids.type) else str
        self._span = _Span.from_ids(ids.to_numpy()) if self._kind is int else None

    @property
    def size(self) -> int:
        """Rows of the embedding table."""
        return len(self.ids) + OOV + 1

    def rows(self, values: pa.Array, field: str) -> IdArray:
        """Embedding rows [len(values)] int64; ``field`` names the column in an error."""
        values = values if pa.types.is_null(values.type) else as_type(values, self.ids.type, field)
        if self._span is None or pa.types.is_null(values.type):
            return _by_unique(values, lambda value: self._row.get(value, OOV))
        if not values.null_count:
            return self._span.rows(values.to_numpy())
        known = values.is_valid().to_numpy(zero_copy_only=False)
        return np.where(known, self._span.rows(values.fill_null(0).to_numpy()), MISSING)

    def rows_of(self, values: Sequence[int | str | None] | IdArray, field: str) -> IdArray:
        """The same of an array, or of Python values: Arrow costs more than a few look-ups.

        Args:
            values: all that are not None are of one type.
            field: names the column in an error.
        """
        if isinstance(values, np.ndarray):
            return self.rows(pa.array(values), field) if self._span is None else self._span.rows(values)
        if isinstance(next((value for value in values if value is not None), None), self._kind | NoneType):
            if self._span is not None and len(values) > FEW:
                with suppress(TypeError):  # a None
                    return self._span.rows(np.array(values, np.int64))
            return np.fromiter(map(self._row.get, values, repeat(OOV)), np.int64, len(values))
        return self.rows(pa.array(values), field)


class _Span:
    """Rows of integers that lie close together, as counted ones do: by position, without a look at each.

    Args:
        first: the smallest.
        table: row of each integer from it on, last that of all others.
    """

    def __init__(self, first: int, table: npt.NDArray[np.int32]) -> None:
        self._first, self._table = np.int64(first), table

    @classmethod
    def from_ids(cls, ids: IdArray) -> _Span | None:
        """None if a table would be far larger than the ids."""
        if not len(ids):
            return None
        first, last = int(ids.min()), int(ids.max())
        if last - first >= 4 * len(ids) + 1_000:
            return None
        table = np.full(last - first + 2, OOV, np.int32)
        table[ids - first] = np.arange(OOV + 1, OOV + 1 + len(ids))
        return cls(first, table)

    def rows(self, ids: IdArray) -> IdArray:
        places = (ids - self._first).view(np.uint64)  # whatever lies before the first wraps around, and is too large
        return self._table.take(np.minimum(places, len(self._table) - 1).view(np.int64)).astype(np.int64)


FEW = 8
"""Look-ups that are sooner done one by one."""

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / golden ratio: multiplying by it spreads what differs in a few bits (Fibonacci hashing)."""


class HashBuckets:
    """Ids hashed into a fixed number of rows; row 0 is missing. An integer and its decimal text hash alike."""

    def __init__(self, buckets: int) -> None:
        self.size = buckets + 1

    def rows(self, values: pa.Array, field: str) -> IdArray:  # noqa: ARG002 — one interface with Vocabulary
        """Embedding rows [len(values)] int64."""
        return _by_unique(values, self._row)

    def rows_of(self, values: Sequence[int | str | None] | IdArray, field: str) -> IdArray:
        """The same of an array, or of Python values."""
        if isinstance(values, np.ndarray):
            return self.rows(pa.array(values), field)
        return np.array([MISSING if value is None else self._row(value) for value in values], np.int64)

    def _row(self, value: int | str) -> int:
        return 1 + stable_hash(value) % (self.size - 1)

    def crossed(self, parts: Sequence[IdArray]) -> IdArray:
        """Embedding rows [rows] int64 of the parts' values taken together; a null in any of them → missing.

        Args:
            parts: of each part the ``hash_column`` [rows]; a null's hash is 0, a value's is 0 once in 2⁶³.
        """
        mixed, known = np.zeros(len(parts[0]), np.uint64), np.ones(len(parts[0]), np.bool_)
        for part in parts:
            mixed = (mixed ^ part.astype(np.uint64)) * GOLDEN_RATIO
            mixed ^= mixed >> np.uint64(32)
            known &= part != 0
        return np.where(known, 1 + (mixed % np.uint64(self.size - 1)).astype(np.int64), MISSING)


class Bucketizer:
    """Buckets of numbers; row 0 is missing, row 1 what is below every boundary, then a row for each boundary.

    Args:
        boundaries: ascending; the bucket of a boundary holds the numbers from it up to, but not including, the next.
    """

    def __init__(self, boundaries: FloatArray) -> None:
        self.boundaries = boundaries

    @property
    def size(self) -> int:
        """Rows of the embedding table."""
        return len(self.boundaries) + 2

    def rows(self, values: pa.Array, field: str) -> IdArray:  # noqa: ARG002 — one interface with Vocabulary
        """Embedding rows [len(values)] int64 of float64 numbers."""
        return self.rows_of(values.cast(pa.float64()).to_numpy(zero_copy_only=False))

    def rows_of(self, numbers: FloatArray) -> IdArray:
        """The same of an array; NaN → missing."""
        return np.where(np.isnan(numbers), MISSING, 1 + np.searchsorted(self.boundaries, numbers, side="right"))


IdMapping = Vocabulary | HashBuckets | Bucketizer


def stable_hash(value: object) -> int:
    """63-bit hash of the value's text: the same on every machine and in every version."""
    text = str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def hashes_of(values: Sequence[int | str | None] | IdArray) -> IdArray:
    """``hash_column`` of an array, or of Python values."""
    if isinstance(values, np.ndarray):
        return hash_column(pa.array(values))
    return np.array([0 if value is None else stable_hash(value) for value in values], np.int64)


def hash_column(column: pa.Array) -> IdArray:
    """Stable hash of each value [rows] int64; null → 0."""
    return _by_unique(column, stable_hash)


def _by_unique(column: pa.Array, function: Callable[[Any], int]) -> IdArray:
    """``function`` of each value, called once per distinct value; null → 0."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    encoded = column.dictionary_encode()
    of_unique = np.fromiter(map(function, encoded.dictionary.to_pylist()), np.int64, len(encoded.dictionary))
    indices = encoded.indices.fill_null(len(of_unique)).to_numpy(zero_copy_only=False)
    found: IdArray = np.append(of_unique, MISSING)[indices]
    return found
