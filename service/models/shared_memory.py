"""Copies of files in memory that the processes of a service share.

A memory-mapped file of a bundle would end the process (SIGBUS) if another program truncated it in place, and would
change scores if the program overwrote it. A copy does neither.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from ranking.regular_files import open_regular

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of a copy: no process can change its content or size."""

CHUNK_BYTES = 64 * 1024 * 1024
"""Number of bytes that are copied per system call."""

LOCK_FILE = "tables.lock"


class SharedMemoryReader:
    """Returns the content of a file as a sealed copy in memory, which exists until no process uses it.

    Processes do not coordinate except for a lock: each finds the copies of the others through ``/proc``, by a name that
    identifies the file and its last change.

    Args:
        folder: Folder that the processes of the service share, for the lock; None if there is one process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def __call__(self, file: Path) -> mmap.mmap:
        """Return the content of a regular file.

        Raises:
            OSError: The file cannot be read, or there is not enough memory.
            ValueError: The file is empty.
        """
        with open_regular(file) as source, self._lock():
            name = _copy_name(source)
            descriptor = None if self._folder is None else _find_copy(name)
            if descriptor is None:
                descriptor = _copy(source, name)
            try:
                # A sealed file cannot be mapped with MAP_SHARED before Linux 6.7. Processes share its pages anyway.
                return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)  # The map has its own.

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let only one process copy at a time, so that the others find its copy."""
        with ExitStack() as stack:
            # Without the lock, as in a full or removed folder, processes that load at the same time have own copies.
            with suppress(OSError):
                if self._folder is not None:
                    fcntl.flock(stack.enter_context((self._folder / LOCK_FILE).open("a+")), fcntl.LOCK_EX)
            yield


def _copy_name(source: BufferedReader) -> str:
    status = os.fstat(source.fileno())
    return f"ranker-{status.st_dev:x}-{status.st_ino:x}-{status.st_size:x}-{status.st_ctime_ns:x}"


def _find_copy(name: str) -> int | None:
    """Open a complete copy of this name that a process of the same user maps."""
    for path in _open_files():
        with suppress(OSError):  # The file has been closed since.
            if os.readlink(path) == f"/memfd:{name} (deleted)":  # noqa: PTH115 — there may be thousands
                descriptor = os.open(path, os.O_RDONLY)
                if _is_trusted(descriptor):
                    return descriptor
                os.close(descriptor)
    return None


def _open_files() -> Iterator[str]:
    """Return the paths in ``/proc`` of the open files of all processes of this user."""
    for process in os.scandir("/proc"):
        if process.name.isdecimal():
            with suppress(OSError):  # The process belongs to another user, or has ended.
                yield from [file.path for file in os.scandir(f"{process.path}/fd")]


def _is_trusted(descriptor: int) -> bool:
    """Whether a copy is complete and was made by the same user."""
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == SEALS and os.fstat(descriptor).st_uid == os.geteuid()


def _copy(source: BufferedReader, name: str) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        while os.sendfile(descriptor, source.fileno(), None, CHUNK_BYTES):
            pass
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
