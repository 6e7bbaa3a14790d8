"""Columns of numbers in a temporary file, so that only those in use are in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelines.work_folder import temporary_file_errors
from ranking.encoding.batch import Float32
from ranking.metrics import Ids

ITEM_BYTES = 4


class SpilledColumns:
    """Values [rows, ...] that are appended by rows and read by columns.

    Pickled, they contain the content of the file. Several threads may read at a time.

    Args:
        shape: shape of the values of a row.

    Raises:
        OutputError: the folder for temporary files cannot be written. So do all methods.
    """

    def __init__(self, *shape: int) -> None:
        self._shape, self._chunks = shape, list[int]()
        with temporary_file_errors():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with this object)

    def __len__(self) -> int:
        return sum(self._chunks)

    def append(self, values: Float32) -> None:
        """Append rows.

        Args:
            values: the rows [rows, ...].
        """
        self._write(np.ascontiguousarray(np.moveaxis(values, 0, -1), np.float32).tobytes())
        self._chunks.append(len(values))

    def extend(self, other: SpilledColumns) -> None:
        """Append the rows of others of the same shape."""
        for content in other._contents():
            self._write(content)
        self._chunks += other._chunks

    def column(self, *index: int) -> Float32:
        """Return one column [rows].

        Args:
            index: position in the shape of a row.
        """
        position = int(np.ravel_multi_index(index, self._shape))
        column, start, end = np.empty(len(self), np.float32), 0, 0
        for rows in self._chunks:
            part = self._read(start + position * rows * ITEM_BYTES, rows * ITEM_BYTES)
            column[end : end + rows] = np.frombuffer(part, np.float32)
            start, end = start + rows * self._row_bytes, end + rows
        return column

    def take(self, rows: Ids) -> SpilledColumns:
        """Return the rows at these indices, in their order."""
        taken = SpilledColumns(*self._shape)
        for index in np.ndindex(self._shape):
            taken._write(self.column(*index)[rows].tobytes())
        taken._chunks = [len(rows)]
        return taken

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self._shape, "chunks": self._chunks, "contents": list(self._contents())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["shape"])  # type: ignore[misc]
        for content in state["contents"]:
            self._write(content)
        self._chunks = state["chunks"]

    @property
    def _row_bytes(self) -> int:
        return ITEM_BYTES * int(np.prod(self._shape))

    def _contents(self) -> Iterator[bytes]:
        """Yield the content of each chunk."""
        start = 0
        for rows in self._chunks:
            yield self._read(start, rows * self._row_bytes)
            start += rows * self._row_bytes

    def _write(self, content: bytes) -> None:
        with temporary_file_errors():
            self._file.write(content)
            self._file.flush()

    def _read(self, start: int, size: int) -> bytes:
        """Return a part of the file; unlike ``read`` of the file, without a position that threads would share."""
        with temporary_file_errors():
            return os.pread(self._file.fileno(), size, start)
