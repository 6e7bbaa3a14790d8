"""Give free memory back to the operating system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def return_free_memory() -> None:
    """Give back the free memory that the C library keeps after many large arrays; not every one has a function for it.

    It takes some 10 ms.
    """
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
