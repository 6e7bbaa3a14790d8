"""Exclusive locks of files and folders."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path
from typing import Self


class FileLock:
    """Exclusive lock of a file or folder; the operating system releases it if the process dies.

    Args:
        path: the file or folder.
        wait: wait while another process holds the lock.
        create: create the file if it does not exist.

    Raises:
        BlockingIOError: another process holds the lock, and ``wait`` is false.
        FileNotFoundError: the file does not exist, and ``create`` is false.
        OSError: the file cannot be opened, or its filesystem has no locks.

    Attributes:
        close: function that releases the lock; further calls do nothing. It is called when the object is freed.
    """

    def __init__(self, path: Path, *, wait: bool = True, create: bool = False) -> None:
        # Network filesystems lock only files that are open for writing.
        access = os.O_RDONLY if path.is_dir() else os.O_RDWR | (os.O_CREAT if create else 0)
        descriptor = os.open(path, access | os.O_CLOEXEC, 0o666)
        self.close = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
