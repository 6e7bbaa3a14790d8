"""Arrays in ``.npy`` files: written incrementally, opened as read-only memory maps."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt


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


def open_array(file: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Map the array [rows] in a file; its pages are read on access and shared with other processes.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not hold a one-dimensional array of this type.
    """
    array = np.asarray(np.load(file, mmap_mode="r"))
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ValueError(f"{file.name} holds {array.dtype} {list(array.shape)}, not {np.dtype(dtype)} [rows]")
    return array
