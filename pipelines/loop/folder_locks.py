"""Locks of the folders that ``ranker join``, ``forget`` and ``counters follow`` read and replace files in.

A lock is that of the folder itself, so that it needs no file, also in a folder that a command may only read. The
operating system releases it if the process dies.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pipelines.console import print_status
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError
from ranking.file_locks import FileLock

WITHOUT_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of filesystems that cannot lock folders, such as some versions of NFS."""


@contextmanager
def lock_folders(paths: Iterable[Path]) -> Iterator[None]:
    """Exclude the other commands from some folders; wait for those that have a lock.

    Args:
        paths: folders, or files, which stand for their folders; those that do not exist are not locked.

    Raises:
        OutputError: a folder cannot be opened.
    """
    existing = [path.resolve() for path in paths if path.exists()]
    # All commands lock in the same order, so that no two wait for each other.
    folders = sorted({path if path.is_dir() else path.parent for path in existing})
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(lock_folder(folder))
        yield


@contextmanager
def lock_folder(folder: Path, busy: str | None = None) -> Iterator[None]:
    """Exclude the other commands from a folder.

    Args:
        folder: the folder.
        busy: message of the error if another command has the lock; default: wait for it.

    Raises:
        OutputError: the folder cannot be opened, or another command has the lock.
    """
    lock: AbstractContextManager[Any] = nullcontext()
    try:
        try:
            lock = FileLock(folder, wait=False)
        except BlockingIOError:
            if busy is not None:
                raise OutputError(busy) from None
            print_status(f"{folder}: waiting for another command that reads or writes it")
            lock = FileLock(folder)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise OutputError(f"{folder}: cannot be opened ({os_error_text(error)})") from None
        print_status(
            f"{folder}: its filesystem has no locks: do not run 'ranker join', 'ranker forget' and "
            "'ranker counters follow' at the same time"
        )
    with lock:
        yield
