"""Arrays in ``.npy`` files: written incrementally, opened as read-only arrays over the memory of a file."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ranking.regular_files import open_regular

ReadFile = Callable[[Path], mmap.mmap]
"""Function that returns the content of a file as read-only memory."""

HEADER_BYTES = 16 * 1024
"""Upper bound on the size of a header; NumPy rejects headers above 10,000 bytes."""


class ArrayWriter:
    """Context manager that writes a one-dimensional array in parts, without holding it in memory.

    Args:
        file: path ending in ``.npy``.
        dtype: type of the array.
    """

    def __init__(self, file: Path, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._rows = 0
        self._stream = file.open("wb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows [n]."""
        self._stream.write(np.ascontiguousarray(rows, self._dtype).data)
        self._rows += len(rows)

    def _write_header(self) -> None:
        """Write the header, which NumPy pads so that the number of rows may grow in place."""
        np.lib.format.write_array_header_2_0(
            self._stream,
            {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._rows,)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            self._stream.seek(0)
            self._write_header()


def map_file(file: Path) -> mmap.mmap:
    """Map a file; its pages are read on access and shared with other processes.

    The kernel kills a process (SIGBUS) that accesses a mapped file after another program has truncated it.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is empty.
    """
    with open_regular(file) as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def open_array(file: Path, dtype: npt.DTypeLike, read_file: ReadFile = map_file) -> npt.NDArray[Any]:
    """Return the array [rows] in a file, read-only, over the memory that ``read_file`` returns.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not hold a one-dimensional array of this type.
    """
    content = read_file(file)
    stream = io.BytesIO(memoryview(content)[:HEADER_BYTES])
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, stored = read_header(stream)
    if stored.hasobject:
        raise ValueError(f"{file.name} holds Python objects")
    if stored != np.dtype(dtype) or len(shape) != 1 or shape[0] < 0:  # NumPy infers a size of -1 from the buffer.
        raise ValueError(f"{file.name} holds {stored} {list(shape)}, not {np.dtype(dtype)} [rows]")
    if stream.tell() + shape[0] * stored.itemsize > len(content):
        raise ValueError(f"{file.name} holds fewer than {shape[0]} rows")
    return np.ndarray(shape, stored, content, stream.tell())
