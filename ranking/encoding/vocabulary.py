"""Map values to rows of an embedding table: by vocabulary, by hash, or by the bucket of a number."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from types import NoneType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ranking.encoding.columns import cast_ids
from ranking.encoding.id_rows import MISSING, OOV, DenseRows, IndexedRows, holds_dense_rows
from ranking.ids.npy import ReadFile, map_file
from ranking.regular_files import open_regular, read_parquet

IdArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MAX_DICTIONARY = 100_000
"""Number of ids up to which a vocabulary is a Python dictionary: single values are found faster, but an id takes about
160 bytes in each process."""

MAX_SCALAR_LOOKUPS = 8
"""Number of integers up to which Python dictionary lookups are faster than NumPy."""

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / golden ratio: the multiplier of Fibonacci hashing, which spreads differences in few bits over all bits."""


class IdFile:
    """Ids in a Parquet file, which are read only when they are needed.

    Args:
        path: the file.

    Attributes:
        type: type of the ids, int64 or string.

    Raises:
        OSError, pyarrow.ArrowException, KeyError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        with open_regular(path) as stream:
            metadata = pq.read_metadata(stream)
        self._path = path
        self._count: int = metadata.num_rows
        self.type: pa.DataType = metadata.schema.to_arrow_schema().field("id").type

    def __len__(self) -> int:
        return self._count

    def read(self) -> pa.Array:
        """Return the ids."""
        return read_parquet(self._path)["id"].combine_chunks()

    def copy(self, target: Path) -> None:
        """Write the same ids to a new file."""
        shutil.copyfile(self._path, target)


class Vocabulary:
    """Known ids of one embedding table: row 0 is missing, row 1 OOV, then the ids, most frequent first.

    Args:
        ids: int64 or string, without nulls or duplicates.
        arrays: lookup of the ids, if it was built before.

    Attributes:
        id_type: type of the ids.
        size: number of rows of the embedding table.
    """

    def __init__(self, ids: pa.Array | IdFile, arrays: DenseRows | IndexedRows | None = None) -> None:
        self._ids, self.id_type, self.size = ids, ids.type, len(ids) + OOV + 1
        self._python_type = int if pa.types.is_integer(ids.type) else str
        self._row: dict[Any, int] | None = None
        if not isinstance(ids, IdFile) and arrays is None:
            arrays = DenseRows.build(ids.to_numpy()) if self._python_type is int else None
            if len(ids) <= MAX_DICTIONARY:
                self._row = {value: row for row, value in enumerate(ids.to_pylist(), start=OOV + 1)}
                self._row[None] = MISSING
            elif arrays is None:
                arrays = IndexedRows.build(ids)
        self._dense = arrays if isinstance(arrays, DenseRows) else None
        self._indexed = arrays if isinstance(arrays, IndexedRows) else None

    @classmethod
    def open(cls, file: Path, read_file: ReadFile = map_file) -> Self:
        """Open a vocabulary that ``write`` wrote. One without arrays, as in earlier versions, gets them in memory.

        Args:
            file: file of the ids.
            read_file: returns the content of a file with an array.

        Raises:
            OSError, ValueError, KeyError, pyarrow.ArrowException: a file is damaged.
        """
        ids, folder = IdFile(file), file.with_suffix("")
        if not folder.is_dir():
            return cls(ids.read())
        arrays = DenseRows if holds_dense_rows(folder) else IndexedRows
        return cls(ids, arrays.open(folder, ids.type, len(ids), read_file))

    def write(self, file: Path) -> None:
        """Write the ids to a Parquet file, and the arrays of a large vocabulary to a folder of the same name."""
        if isinstance(self._ids, IdFile):
            self._ids.copy(file)
        else:
            pq.write_table(pa.table({"id": self._ids}), file)
        arrays = self._dense or self._indexed
        if arrays is not None and self._row is None:
            folder = file.with_suffix("")
            folder.mkdir()
            arrays.write(folder)

    def ids(self) -> pa.Array:
        """Return the ids; those of a large vocabulary are read from its file.

        Raises:
            OSError, pyarrow.ArrowException: the file is damaged, or was removed.
        """
        return self._ids.read() if isinstance(self._ids, IdFile) else self._ids

    def rows(self, values: pa.Array, field: str) -> IdArray:
        """Return the embedding rows [len(values)] int64; ``field`` is the column name for error messages."""
        if pa.types.is_null(values.type):
            return np.full(len(values), MISSING, np.int64)
        values = cast_ids(values, self.id_type, field)
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
        if isinstance(next((value for value in values if value is not None), None), self._python_type | NoneType):
            if self._dense is not None and (self._row is None or len(values) > MAX_SCALAR_LOOKUPS):
                with suppress(TypeError):  # A value is None.
                    return self._dense.rows(np.array(values, np.int64))
            if self._row is not None:
                return np.fromiter(map(self._row.get, values, repeat(OOV)), np.int64, len(values))
            if self._indexed is not None and None not in values:
                return self._indexed.rows_from_values(values)
        return self.rows(pa.array(values), field)


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
