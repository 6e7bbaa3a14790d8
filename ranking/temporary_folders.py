"""Temporary folders that disappear even if their process is killed: the next process that creates one removes them.

Processes that use a folder lock it. The operating system releases the lock of a killed process, so that a folder that
no process locks is abandoned.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TOKEN_BYTES = 8
"""Random bytes in the name of a folder."""
FOLDER_NAME = re.compile(rf"ranker-[a-z]+-[0-9a-f]{{{2 * TOKEN_BYTES}}}")
"""Name of a folder; folders with other names are never removed."""


class FolderLock:
    """Protects a folder against removal by other processes while this object and this process exist.

    Several processes may protect the same folder. On a filesystem without locks, no process removes the folder.

    Args:
        folder: the folder; it is created if it does not exist.

    Raises:
        OSError: the folder cannot be created or opened.
    """

    def __init__(self, folder: Path) -> None:
        while True:
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # another process has removed the folder before it was locked
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                self.close = weakref.finalize(self, os.close, descriptor)
                with suppress(OSError):  # a filesystem without locks
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(descriptor), folder.lstat()):
                    return


@contextmanager
def temporary_folder(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a folder for temporary files, and remove it at the end.

    Args:
        purpose: word in the name of the folder, of lowercase letters.
        parent: folder to create it in. Default: the system's folder for temporary files.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = new_path(purpose, parent or Path(tempfile.gettempdir()))
    lock = FolderLock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def new_path(purpose: str, parent: Path) -> Path:
    """Return the path of a new folder, which ``FolderLock`` creates, after removing abandoned folders beside it."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if FOLDER_NAME.fullmatch(entry.name):
                _remove_if_abandoned(Path(entry.path))
    return parent / f"ranker-{purpose}-{secrets.token_hex(TOKEN_BYTES)}"


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder of this user that no process uses."""
    with suppress(OSError):  # a link, a file, or a folder of another user that this one cannot read
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a process uses the folder
                # Another process may have removed the folder, and its owner created it again, before the lock.
                if os.path.samestat(os.fstat(descriptor), folder.lstat()):
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
