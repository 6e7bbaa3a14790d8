"""Memory that the C library gives back."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from ranking.free_memory import return_free_memory

BLOCK, COUNT = 64 * 1024, 2_000
"""Blocks below the size that malloc maps on its own."""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim")
def test_free_memory_below_memory_in_use_is_returned() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(BLOCK) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:  # the last one keeps the others from being returned
        libc.free(block)
    before = _anonymous_bytes()
    return_free_memory()
    assert before - _anonymous_bytes() > BLOCK * COUNT // 2
    libc.free(blocks[-1])


def test_c_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    return_free_memory()


def _anonymous_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
