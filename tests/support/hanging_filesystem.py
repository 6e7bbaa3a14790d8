"""A filesystem whose server never answers, like a network filesystem without its server."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEVICE = "/dev/fuse"
MNT_DETACH = 2


@contextmanager
def hanging_filesystem(folder: Path) -> Iterator[None]:
    """Hide a folder behind the filesystem; skip the test if this process may not mount FUSE filesystems."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(DEVICE, os.O_RDWR)
    except OSError as error:
        pytest.skip(f"{DEVICE} cannot be opened: {error.strerror}")
    try:
        options = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if libc.mount(b"hanging", os.fsencode(folder), b"fuse", 0, options.encode()):
            pytest.skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.umount2(os.fsencode(folder), MNT_DETACH)
    finally:
        os.close(descriptor)  # Pending reads fail.
