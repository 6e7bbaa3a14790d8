"""Finds rows that repeat an earlier row exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.id_spaces import hash_column, stable_hash

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: Fibonacci hashing

NULL = np.uint64(0xD1B54A32D192ED03)  # stands for a null among integers; no id or time in use


class DuplicateFilter:
    """Remembers 8 bytes of every row it has seen.

    Rows are told apart by a 64-bit hash: among 10⁸ rows of one partition a false repeat turns up once in 3,700 logs.
    """

    def __init__(self) -> None:
        self._seen = np.empty(0, np.uint64)

    def first_seen(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Whether each row [rows] is the first of its kind so far."""
        hashes = row_hashes(table)
        unique, first = np.unique(hashes, return_index=True)
        new = ~np.isin(unique, self._seen, assume_unique=True)
        result = np.zeros(len(hashes), np.bool_)
        result[first[new]] = True
        self._seen = np.concatenate([self._seen, unique[new]])
        return result


def row_hashes(table: pa.Table) -> npt.NDArray[np.uint64]:
    """Hash of each row over all columns [rows]."""
    hashes = np.zeros(table.num_rows, np.uint64)
    for column in table.columns:
        hashes = (hashes ^ _values(column.combine_chunks())) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _values(column: pa.Array) -> npt.NDArray[np.uint64]:
    """64 bits for each value."""
    if pa.types.is_nested(column.type):
        return np.fromiter(map(stable_hash, column.to_pylist()), np.uint64, len(column))
    if pa.types.is_integer(column.type) or pa.types.is_temporal(column.type) or pa.types.is_boolean(column.type):
        wide = column.cast(pa.int8()).cast(pa.int64()) if pa.types.is_boolean(column.type) else _as_int64(column)
        null = column.is_null().to_numpy(zero_copy_only=False)
        values = wide.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
        return np.where(null, NULL, values)
    return hash_column(column).astype(np.uint64)


def _as_int64(column: pa.Array) -> pa.Array:
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column.cast(pa.int64(), safe=False)
