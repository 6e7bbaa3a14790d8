"""Files of lines that one process writes: named ``.part`` until they are finished, and every line in them whole."""

from __future__ import annotations

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

PART, DONE = ".jsonl.part", ".jsonl"


class RotatingJsonlFile:
    """Appends to a file of its own, and finishes it when it is large or old: flushed to disk, then renamed.

    Files that a killed process left are finished when the next one starts: whoever writes to a file locks it.

    Args:
        folder: where; several processes may share it.
        max_bytes: a file is finished when it is as large.
        max_seconds: or as old.

    Raises:
        OutputError: the folder cannot be written.
    """

    def __init__(self, folder: Path, max_bytes: int, max_seconds: float) -> None:
        self._folder, self._max_bytes, self._max_seconds = folder, max_bytes, max_seconds
        self._file: int | None = None
        self._part = folder
        self._size = 0
        self._since = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._finish_orphans()
        except OSError as error:
            raise OutputError(f"{folder}: feedback cannot be written ({os_error_text(error)})") from None

    def append(self, lines: bytes) -> None:
        """Whole lines, by one write: all of them are there, or none.

        Raises:
            OSError: they could not be written.
        """
        if self._file is None:
            self._open()
        assert self._file is not None
        written = os.write(self._file, lines)
        if written < len(lines):  # the disk is full: half a line is worse than none
            os.ftruncate(self._file, self._size)
            raise OSError(28, "no space left on device")
        self._size += written
        if self._size >= self._max_bytes:
            self.finish()

    def wait(self) -> float | None:
        """Seconds until the file is old enough to be finished; None: there is none."""
        return None if self._file is None else max(0.0, self._since + self._max_seconds - time.monotonic())

    def finish(self) -> None:
        """Flushes the file to disk and gives it its name; whoever collects files takes those."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            os.fsync(file)
            self._part.rename(_done(self._part))
            fsync(self._folder)
        finally:
            os.close(file)  # and unlocked

    def _open(self) -> None:
        name = f"feedback-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:12]}{PART}"
        self._part = self._folder / name
        self._file = os.open(self._part, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._size, self._since = 0, time.monotonic()

    def _finish_orphans(self) -> None:
        for part in self._folder.glob(f"*{PART}"):
            with suppress(FileNotFoundError, BlockingIOError), part.open("r+b") as orphan:  # gone; its process lives
                fcntl.flock(orphan, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(orphan.fileno()).st_size:  # just made, perhaps, and about to be locked
                    continue
                os.fsync(orphan.fileno())
                part.rename(_done(part))
                log.warning("%s was left by a process that ended without finishing it; it is finished now", part.name)


def _done(part: Path) -> Path:
    return part.with_name(part.name.removesuffix(PART) + DONE)
