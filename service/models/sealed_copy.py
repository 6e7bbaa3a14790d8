"""Copies of files in memory.

A memory-mapped file of a bundle would end the process (SIGBUS) if another program truncated it in place, and would
change scores if the program overwrote it. A copy does neither.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

from ranking.regular_files import open_regular

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of a copy: no process can change its content or size."""

CHUNK_BYTES = 64 * 1024 * 1024
"""Number of bytes that are copied per system call."""


def copy_file(file: Path) -> mmap.mmap:
    """Copy a regular file into sealed memory, which is freed with the returned map.

    Raises:
        OSError: the file cannot be read, or there is not enough memory.
        ValueError: the file is empty.
    """
    with open_regular(file) as source:
        name = f"ranker-{os.fstat(source.fileno()).st_ino:x}-{file.name}"
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            while os.sendfile(descriptor, source.fileno(), None, CHUNK_BYTES):
                pass
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            # A sealed file cannot be mapped with MAP_SHARED before Linux 6.7.
            return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)  # the map has its own
