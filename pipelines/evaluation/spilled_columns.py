"""Columns of numbers in a temporary file, so that only those in use are in memory.

Small arrays that are kept while others come and go fragment the heap: the labels and scores of a large log took three
times their size.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.work_folder import temporary_file_errors
from ranking.metrics import Ids

Number = TypeVar("Number", bound=np.generic)


class SpilledColumns(Generic[Number]):
    """Values [rows, ...] that are appended by rows and read by columns.

    Pickled, they contain the content of the file. Several threads may read at a time.

    Args:
        dtype: type of the values.
        shape: shape of the values of a row.

    Attributes:
        shape: this shape.

    Raises:
        OutputError: the folder for temporary files cannot be written. So do all methods.
    """

    def __init__(self, dtype: type[Number], *shape: int) -> None:
        self._dtype, self.shape, self._chunks = np.dtype(dtype), shape, list[int]()
        with temporary_file_errors():
            # Without a buffer, whose content would be written again when a full file is closed.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it is closed with this object)

    @classmethod
    def of(cls, values: npt.NDArray[Number]) -> SpilledColumns[Number]:
        """Return the columns of an array [rows, ...]."""
        columns = cls(values.dtype.type, *values.shape[1:])
        columns.append(values)
        return columns

    def __len__(self) -> int:
        return sum(self._chunks)

    def append(self, values: npt.NDArray[Number]) -> None:
        """Append rows.

        Args:
            values: the rows [rows, ...].
        """
        self._write(np.ascontiguousarray(np.moveaxis(values, 0, -1), self._dtype).tobytes())
        self._chunks.append(len(values))

    def extend(self, other: SpilledColumns[Number]) -> None:
        """Append the rows of others of the same type and shape."""
        for content in other._contents():
            self._write(content)
        self._chunks += other._chunks

    def column(self, *index: int) -> npt.NDArray[Number]:
        """Return one column [rows].

        Args:
            index: position in the shape of a row.
        """
        position, width = int(np.ravel_multi_index(index, self.shape)), self._dtype.itemsize
        column, start, end = np.empty(len(self), self._dtype), 0, 0
        for rows in self._chunks:
            part = self._read(start + position * rows * width, rows * width)
            column[end : end + rows] = np.frombuffer(part, self._dtype)
            start, end = start + rows * self._row_bytes, end + rows
        return column

    def take(self, rows: Ids) -> SpilledColumns[Number]:
        """Return the rows at these indices, in their order."""
        taken = SpilledColumns(self._dtype.type, *self.shape)
        for index in np.ndindex(self.shape):
            taken._write(self.column(*index)[rows].tobytes())
        taken._chunks = [len(rows)]
        return taken

    def __getstate__(self) -> dict[str, Any]:
        arguments = (self._dtype.type, *self.shape)
        return {"arguments": arguments, "chunks": self._chunks, "contents": list(self._contents())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["arguments"])  # type: ignore[misc]
        for content in state["contents"]:
            self._write(content)
        self._chunks = state["chunks"]

    @property
    def _row_bytes(self) -> int:
        return self._dtype.itemsize * int(np.prod(self.shape))

    def _contents(self) -> Iterator[bytes]:
        """Yield the content of each chunk."""
        start = 0
        for rows in self._chunks:
            yield self._read(start, rows * self._row_bytes)
            start += rows * self._row_bytes

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        with temporary_file_errors():
            while rest:
                rest = rest[self._file.write(rest) :]

    def _read(self, start: int, size: int) -> bytes:
        """Return a part of the file; unlike ``read`` of the file, without a position that threads would share."""
        content = b""
        with temporary_file_errors():
            while len(content) < size:
                part = os.pread(self._file.fileno(), size - len(content), start + len(content))
                if not part:
                    raise OSError(errno.EIO, "the file was truncated")
                content = content + part if content else part
        return content
