"""Arrays in ``.npy`` files: written piece by piece, opened as read-only maps that processes share."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class ArrayWriter:
    """Writes an array [rows] of one type without ever holding it whole; a context manager.

    Args:
        file: ends in ``.npy``.
        dtype: of the array.
    """

    def __init__(self, file: Path, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._rows = 0
        self._stream = file.open("wb")
        self._header()

    def append(self, piece: npt.NDArray[Any]) -> None:
        """Writes further rows [n]."""
        self._stream.write(np.ascontiguousarray(piece, self._dtype).data)
        self._rows += len(piece)

    def _header(self) -> None:
        """NumPy pads headers so that the number of rows may grow in place."""
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
            self._header()


def open_array(file: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The array [rows] in a file, mapped: pages are read when they are touched and shared with other processes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    array = np.asarray(np.load(file, mmap_mode="r"))
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ValueError(f"{file.name} holds {array.dtype} {list(array.shape)}, not {np.dtype(dtype)} [rows]")
    return array
