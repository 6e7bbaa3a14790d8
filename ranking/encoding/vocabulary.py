"""Map values to rows of an embedding table: by vocabulary, by hash, or by the bucket of a number."""

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

from ranking.encoding.columns import cast_ids
from ranking.ids.index import IdIndex

IdArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MISSING = 0
"""Embedding row of a missing value."""
OOV = 1
"""Embedding row of a value that is not in the vocabulary."""

MAX_DICTIONARY = 100_000
"""Number of ids up to which a vocabulary is a Python dictionary: single values are found faster, but an id takes about
160 bytes in each process."""

MAX_SCALAR_LOOKUPS = 8
"""Number of integers up to which Python dictionary lookups are faster than NumPy."""

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / golden ratio: the multiplier of Fibonacci hashing, which spreads differences in few bits over all bits."""


class Vocabulary:
    """Known ids of one embedding table: row 0 is missing, row 1 OOV, then the ids, most frequent first.

    Args:
        ids: int64 or string, without nulls or duplicates.
    """

    def __init__(self, ids: pa.Array) -> None:
        self.ids = ids
        self._id_type = int if pa.types.is_integer(ids.type) else str
        self._dense = _DenseIntegerRows.from_ids(ids.to_numpy()) if self._id_type is int else None
        self._row: dict[Any, int] | None = None
        self._indexed: _IndexedRows | None = None
        if len(ids) <= MAX_DICTIONARY:
            self._row = {value: row for row, value in enumerate(ids.to_pylist(), start=OOV + 1)}
            self._row[None] = MISSING
        elif self._dense is None:
            self._indexed = _IndexedRows(ids)

    @property
    def size(self) -> int:
        """Number of rows of the embedding table."""
        return len(self.ids) + OOV + 1

    def rows(self, values: pa.Array, field: str) -> IdArray:
        """Return the embedding rows [len(values)] int64; ``field`` is the column name for error messages."""
        if pa.types.is_null(values.type):
            return np.full(len(values), MISSING, np.int64)
        values = cast_ids(values, self.ids.type, field)
        if self._dense is not None:
            if not values.null_count:
                return self._dense.rows(values.to_numpy())
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            return np.where(valid, self._dense.rows(values.fill_null(0).to_numpy()), MISSING)
        if self._indexed is not None:
            return _map_unique(values, self._indexed.rows)
        row = self._row
        assert row is not None
        return _map_unique(values, lambda ids: _map_values(ids, lambda value: row.get(value, OOV)))

    def rows_from_values(self, values: Sequence[int | str | None] | IdArray, field: str) -> IdArray:
        """Return the same as ``rows`` for Python values or a NumPy array, avoiding Arrow's cost per call.

        Args:
            values: 64-bit integers, or text that has a UTF-8 form; a sequence may also hold None.
            field: column name for error messages.
        """
        if isinstance(values, np.ndarray):
            return self.rows(pa.array(values), field) if self._dense is None else self._dense.rows(values)
        if isinstance(next((value for value in values if value is not None), None), self._id_type | NoneType):
            if self._dense is not None and (self._row is None or len(values) > MAX_SCALAR_LOOKUPS):
                with suppress(TypeError):  # A value is None.
                    return self._dense.rows(np.array(values, np.int64))
            if self._row is not None:
                return np.fromiter(map(self._row.get, values, repeat(OOV)), np.int64, len(values))
            if self._indexed is not None and None not in values:
                return self._indexed.rows_from_values(values)
        return self.rows(pa.array(values), field)


class _IndexedRows:
    """Lookup of many ids in arrays: 20 to 24 bytes per integer, 28 to 32 per text.

    Args:
        ids: ids of the vocabulary.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._index, order = IdIndex.build(ids)
        self._rows = np.append(order + OOV + 1, OOV)  # NOT_FOUND is the last position.

    def rows(self, values: pa.Array) -> IdArray:
        """Return the embedding row of each value; values have the type of the ids and are not null."""
        rows: IdArray = self._rows[self._index.rows(values)]
        return rows

    def rows_from_values(self, values: Sequence[Any]) -> IdArray:
        """Return the same for Python values without None."""
        rows: IdArray = self._rows[self._index.rows_from_values(values)]
        return rows


class _DenseIntegerRows:
    """Array lookup for integer ids that are close together, such as counters.

    Args:
        first: the smallest id.
        table: embedding row of each integer from ``first`` on; the last entry is the row of all other integers.
    """

    def __init__(self, first: int, table: npt.NDArray[np.int32]) -> None:
        self._first, self._table = np.int64(first), table

    @classmethod
    def from_ids(cls, ids: IdArray) -> _DenseIntegerRows | None:
        """Return None if the table would be more than four times as long as the ids (plus 1,000)."""
        if not len(ids):
            return None
        first, last = int(ids.min()), int(ids.max())
        if last - first >= 4 * len(ids) + 1_000:
            return None
        table = np.full(last - first + 2, OOV, np.int32)
        table[ids - first] = np.arange(OOV + 1, OOV + 1 + len(ids))
        return cls(first, table)

    def rows(self, ids: IdArray) -> IdArray:
        offsets = (ids - self._first).view(np.uint64)  # Smaller ids wrap around to offsets beyond the table.
        return self._table.take(np.minimum(offsets, len(self._table) - 1).view(np.int64)).astype(np.int64)


class HashBuckets:
    """Ids hashed into a fixed number of rows; row 0 is missing. An integer and its decimal text hash alike.

    Args:
        buckets: number of rows after row 0.
    """

    def __init__(self, buckets: int) -> None:
        self.size = buckets + 1

    def rows(self, values: pa.Array, field: str) -> IdArray:  # noqa: ARG002 — same interface as Vocabulary
        """Return the embedding rows [len(values)] int64."""
        return _map_unique(values, lambda ids: _map_values(ids, self._row))

    def rows_from_values(self, values: Sequence[int | str | None] | IdArray, field: str) -> IdArray:
        """Return the same as ``rows`` for Python values or a NumPy array."""
        if isinstance(values, np.ndarray):
            return self.rows(pa.array(values), field)
        return np.array([MISSING if value is None else self._row(value) for value in values], np.int64)

    def _row(self, value: int | str) -> int:
        return 1 + stable_hash(value) % (self.size - 1)

    def cross_rows(self, hashes: Sequence[IdArray]) -> IdArray:
        """Return the embedding rows [rows] int64 of a cross; a null in any of its parts gives the missing row.

        Args:
            hashes: the ``hash_column`` [rows] of each part, where 0 means null (a value hashes to 0 once in 2⁶³).
        """
        mixed, known = _mix(hashes)
        return np.where(known, 1 + (mixed % np.uint64(self.size - 1)).astype(np.int64), MISSING)


class Bucketizer:
    """Buckets of numbers: row 0 is missing, row 1 below all boundaries, then one row per boundary.

    Args:
        boundaries: ascending; a boundary's bucket holds the numbers from it (inclusive) to the next (exclusive).
    """

    def __init__(self, boundaries: FloatArray) -> None:
        self.boundaries = boundaries

    @property
    def size(self) -> int:
        """Number of rows of the embedding table."""
        return len(self.boundaries) + 2

    def rows(self, values: pa.Array, field: str) -> IdArray:  # noqa: ARG002 — same interface as Vocabulary
        """Return the embedding rows [len(values)] int64 of numbers."""
        return self.rows_from_values(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))

    def rows_from_values(self, numbers: FloatArray) -> IdArray:
        """Return the embedding rows [len(numbers)] int64 of numbers; NaN gives the missing row."""
        return np.where(np.isnan(numbers), MISSING, 1 + np.searchsorted(self.boundaries, numbers, side="right"))


IdMapping = Vocabulary | HashBuckets | Bucketizer
"""Mapping from the values of a feature to the rows of its embedding table."""


def mix_hashes(hashes: Sequence[IdArray]) -> IdArray:
    """Combine hashes into one 63-bit hash that depends on their order.

    Args:
        hashes: the ``hash_column`` [rows] of each part; 0 means null.

    Returns:
        Combined hash [rows] int64; 0 if a part is null.
    """
    mixed, known = _mix(hashes)
    return np.where(known, np.maximum((mixed >> np.uint64(1)).view(np.int64), 1), 0)


def _mix(hashes: Sequence[IdArray]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return the combined hash of each row [rows] and whether none of its parts is null [rows]."""
    mixed, known = np.zeros(len(hashes[0]), np.uint64), np.ones(len(hashes[0]), np.bool_)
    for part in hashes:
        mixed = (mixed ^ part.astype(np.uint64)) * GOLDEN_RATIO
        mixed ^= mixed >> np.uint64(32)
        known &= part != 0
    return mixed, known


def stable_hash(value: object) -> int:
    """Return a 63-bit hash of the value's text that is the same on every machine and in every version."""
    text = str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def hash_values(values: Sequence[int | str | None] | IdArray) -> IdArray:
    """Return the same as ``hash_column`` for Python values or a NumPy array."""
    if isinstance(values, np.ndarray):
        return hash_column(pa.array(values))
    return np.array([0 if value is None else stable_hash(value) for value in values], np.int64)


def hash_column(column: pa.Array, hash_value: Callable[[Any], int] = stable_hash) -> IdArray:
    """Return the stable hash of each value [rows] int64; null gives 0.

    Args:
        column: ids.
        hash_value: function with the results of ``stable_hash``, such as one with a cache.
    """
    return _map_unique(column, lambda ids: _map_values(ids, hash_value))


def _map_unique(column: pa.Array, function: Callable[[pa.Array], IdArray]) -> IdArray:
    """Return the result of a function for each value, which is called with the distinct values; null gives 0."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    encoded = column.dictionary_encode()
    results = function(encoded.dictionary)
    indices = encoded.indices.fill_null(len(results)).to_numpy(zero_copy_only=False)
    mapped: IdArray = np.append(results, 0)[indices]
    return mapped


def _map_values(ids: pa.Array, function: Callable[[Any], int]) -> IdArray:
    """Return the result of a function for each Python value [len(ids)]."""
    return np.fromiter(map(function, ids.to_pylist()), np.int64, len(ids))
