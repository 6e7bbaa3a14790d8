"""Embedding rows of many ids, in arrays that are built once and then mapped, so that processes share them.

IndexedRows    the files of ``IdIndex``, and ``rows.npy``: embedding row of each row of the index, then OOV
DenseRows      ``dense.npy``: embedding row of each integer from the one in ``first.npy`` on, then OOV
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.ids.index import IdIndex, RowArray
from ranking.ids.npy import ReadFile, open_array

MISSING = 0
"""Embedding row of a missing value."""
OOV = 1
"""Embedding row of a value that is not in the vocabulary."""

DENSE_FILE, FIRST_FILE, ROWS_FILE = "dense.npy", "first.npy", "rows.npy"


def holds_dense_rows(folder: Path) -> bool:
    """Return whether a folder holds ``DenseRows`` rather than ``IndexedRows``."""
    return (folder / DENSE_FILE).exists()


class IndexedRows:
    """Lookup by a hash index: 16 to 20 bytes per integer, 24 to 28 per text.

    Args:
        index: index of the ids.
        rows: embedding row of each row of the index, then ``OOV`` [ids + 1] int32.
    """

    def __init__(self, index: IdIndex, rows: npt.NDArray[np.int32]) -> None:
        self._index, self._rows = index, rows  # NOT_FOUND is the last position of the rows.

    @classmethod
    def build(cls, ids: pa.Array) -> Self:
        """Return the lookup of the ids of a vocabulary in memory."""
        index, order = IdIndex.build(ids)
        return cls(index, np.append(order + OOV + 1, OOV).astype(np.int32))

    @classmethod
    def open(cls, folder: Path, id_type: pa.DataType, count: int, read_file: ReadFile) -> Self:
        """Open a lookup that ``write`` wrote.

        Raises:
            OSError, ValueError: the files are not a lookup of so many ids of this type.
        """
        index, rows = IdIndex.open(folder, id_type, read_file), open_array(folder / ROWS_FILE, np.int32, read_file)
        if len(index) != count:
            raise ValueError(f"keys.npy holds {len(index)} keys, not those of {count} ids")
        if len(rows) != count + 1:
            raise ValueError(f"{ROWS_FILE} holds {len(rows)} rows, which is wrong for {count} ids")
        _check_rows(rows, ROWS_FILE, count)
        return cls(index, rows)

    def write(self, folder: Path) -> None:
        """Write the lookup to an existing folder."""
        self._index.write(folder)
        np.save(folder / ROWS_FILE, self._rows)

    def rows(self, values: pa.Array) -> RowArray:
        """Return the embedding row of each value [n] int64; values have the type of the ids and are not null."""
        return self._rows.take(self._index.rows(values)).astype(np.int64)

    def rows_from_values(self, values: Sequence[Any]) -> RowArray:
        """Return the same for Python values without None."""
        return self._rows.take(self._index.rows_from_values(values)).astype(np.int64)


class DenseRows:
    """Array lookup for integer ids that are close together, such as counters.

    Args:
        first: the smallest id.
        table: embedding row of each integer from ``first`` on, then ``OOV`` for all other integers [span + 1] int32.
    """

    def __init__(self, first: int, table: npt.NDArray[np.int32]) -> None:
        self._first, self._table = np.int64(first), table

    @classmethod
    def build(cls, ids: RowArray) -> Self | None:
        """Return the lookup of ids; None if its table would be more than four times as long as these (plus 1,000)."""
        if not len(ids):
            return None
        first, last = int(ids.min()), int(ids.max())
        if last - first >= 4 * len(ids) + 1_000:
            return None
        table = np.full(last - first + 2, OOV, np.int32)
        table[ids - first] = np.arange(OOV + 1, OOV + 1 + len(ids))
        return cls(first, table)

    @classmethod
    def open(cls, folder: Path, id_type: pa.DataType, count: int, read_file: ReadFile) -> Self:
        """Open a lookup that ``write`` wrote.

        Raises:
            OSError, ValueError: the files are not a lookup of so many ids of this type.
        """
        first = open_array(folder / FIRST_FILE, np.int64, read_file)
        table = open_array(folder / DENSE_FILE, np.int32, read_file)
        if not pa.types.is_integer(id_type) or len(first) != 1 or len(table) < count + 1:
            raise ValueError(
                f"{FIRST_FILE} and {DENSE_FILE} hold {len(first)} and {len(table)} rows, which is wrong for {count} "
                f"ids of type {id_type}"
            )
        _check_rows(table, DENSE_FILE, count)
        return cls(int(first[0]), table)

    def write(self, folder: Path) -> None:
        """Write the lookup to an existing folder."""
        np.save(folder / FIRST_FILE, np.array([self._first]))
        np.save(folder / DENSE_FILE, self._table)

    def rows(self, ids: RowArray) -> RowArray:
        """Return the embedding row of each integer [n] int64."""
        offsets = (ids - self._first).view(np.uint64)  # Smaller ids wrap around to offsets beyond the table.
        return self._table.take(np.minimum(offsets, len(self._table) - 1).view(np.int64)).astype(np.int64)


def _check_rows(rows: npt.NDArray[np.int32], file: str, count: int) -> None:
    """Check that embedding rows are those of a vocabulary with so many ids.

    Raises:
        ValueError: they are not.
    """
    lowest, highest = int(rows.min()), int(rows.max())
    if lowest < OOV or highest > OOV + count:
        raise ValueError(f"{file} holds rows from {lowest} to {highest}, which is wrong for {count} ids")
