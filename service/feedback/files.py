"""JSON Lines files of one process: ``.part`` while they are written, complete lines at any time."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ranking.artifacts.atomic_files import fsync, os_error_text
from ranking.errors import OutputError

log = logging.getLogger("ranker.service")

PART_SUFFIX, FINISHED_SUFFIX = ".jsonl.part", ".jsonl"


class RotatingJsonlFile:
    """Appends to its own file and finishes it at a size or age: flushes it to disk and renames it.

    Each process locks the file that it writes. On construction, the unlocked files of killed processes are finished.

    Args:
        folder: Folder of the files; several processes may share it.
        max_bytes: Size in bytes at which a file is finished.
        max_seconds: Age in seconds at which a file is due to be finished.

    Raises:
        OutputError: The folder is not writable.
    """

    def __init__(self, folder: Path, max_bytes: int, max_seconds: float) -> None:
        self._folder, self._max_bytes, self._max_seconds = folder, max_bytes, max_seconds
        self._file: int | None = None
        self._path = folder
        self._size = 0
        self._opened = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._finish_orphans()
        except OSError as error:
            raise OutputError(f"{folder}: feedback cannot be written ({os_error_text(error)})") from None

    def append(self, lines: bytes) -> None:
        """Append complete lines with a single write: either all of them or none.

        Raises:
            OSError: The lines could not be written.
        """
        if self._file is None:
            self._open()
        assert self._file is not None
        written = os.write(self._file, lines)
        if written < len(lines):  # the disk is full: remove the partial line
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, "no space left on device")
        self._size += written
        if self._size >= self._max_bytes:
            self.finish()

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the open file reaches its maximum age, or None if no file is open."""
        return None if self._file is None else max(0.0, self._opened + self._max_seconds - time.monotonic())

    def finish(self) -> None:
        """Flush the open file to disk and rename it to its final name, if a file is open.

        Raises:
            OSError: The file could not be flushed or renamed.
        """
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            os.fsync(file)
            self._path.rename(_finished(self._path))
            fsync(self._folder)
        finally:
            os.close(file)  # also releases the lock

    def _open(self) -> None:
        name = f"feedback-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:12]}{PART_SUFFIX}"
        self._path = self._folder / name
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._size, self._opened = 0, time.monotonic()

    def _finish_orphans(self) -> None:
        for path in self._folder.glob(f"*{PART_SUFFIX}"):
            # FileNotFoundError: another process finished it; BlockingIOError: its process is running.
            with suppress(FileNotFoundError, BlockingIOError), path.open("r+b") as orphan:
                fcntl.flock(orphan, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(orphan.fileno()).st_size:  # possibly new and not locked yet
                    continue
                os.fsync(orphan.fileno())
                path.rename(_finished(path))
                log.warning("finished %s, left by a process that ended without finishing it", path.name)


def _finished(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(PART_SUFFIX) + FINISHED_SUFFIX)
