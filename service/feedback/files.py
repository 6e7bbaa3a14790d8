"""JSON Lines files of one API key in one process: ``.part`` while they are written, then with complete lines only."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time

from prometheus_client import Counter

from ranking.artifacts.atomic_files import fsync
from service.feedback.folder import FeedbackFolder, finished

log = logging.getLogger("ranker.service")


class RotatingJsonlFile:
    """Appends to its own file and finishes it at a size or age: flushes it to disk and renames it.

    Args:
        folder: Folder of the files.
        max_bytes: Size in bytes at which a file is finished.
        max_seconds: Age in seconds at which a file is due to be finished.
        failures: Counter of failures with the label ``operation``.
        key: Name of the API key whose feedback the files hold, or None without keys.
    """

    def __init__(
        self, folder: FeedbackFolder, max_bytes: int, max_seconds: float, failures: Counter, key: str | None = None
    ) -> None:
        self._folder, self._max_bytes, self._max_seconds = folder, max_bytes, max_seconds
        self._failures, self._key = failures, key
        self._file: int | None = None
        self._path = folder.path
        self._identity = 0, 0
        self._size = 0
        self._opened = 0.0

    def append(self, lines: bytes) -> None:
        """Append complete lines with a single write: either all of them or none, unless the process is killed.

        When this method returns, the lines are in a file at its place in the folder. A kill before that may leave some
        of them; ``FeedbackFolder`` removes an incomplete one.

        Raises:
            OSError: The lines could not be written.
        """
        self.check_in_place()
        if self._file is None:
            self._open()
        assert self._file is not None
        written = os.write(self._file, lines)
        if written < len(lines):  # the disk is full: remove the partial line
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, "no space left on device")
        self._size += written
        if not self.check_in_place():
            raise OSError(errno.ESTALE, "the feedback file was removed while it was written")
        if self._size >= self._max_bytes:
            self.finish()

    def check_in_place(self) -> bool:
        """Return whether the open file, if any, is at its path; if it is not, log the loss and forget the file."""
        if self._file is None:
            return True
        try:
            status = os.stat(self._path)  # noqa: PTH116 — half the time of Path.stat
            if (status.st_dev, status.st_ino) == self._identity:
                return True
        except OSError:
            pass
        file, self._file = self._file, None
        fate = "moved or unmounted" if os.fstat(file).st_nlink else "deleted"
        os.close(file)
        message = "%s was %s while it was written, with %d bytes of accepted feedback"
        log.error(message, self._path, fate, self._size)
        self._failures.labels("lost").inc()
        return False

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the open file reaches its maximum age, or None if no file is open."""
        return None if self._file is None else max(0.0, self._opened + self._max_seconds - time.monotonic())

    def finish(self) -> None:
        """Flush the open file to disk and rename it to its final name, if a file is open; remove an empty one.

        If that fails, the error is logged and the lines stay in the unfinished file; the next scan of the folder tries
        again to finish it.
        """
        if not self.check_in_place() or self._file is None:
            return
        file, self._file = self._file, None
        try:
            if self._size:
                os.fsync(file)
                self._path.rename(finished(self._path))
                fsync(self._folder.path)
            else:  # its first write failed
                self._path.unlink()
        except OSError as error:
            log.error("%s cannot be finished: %s", self._path, error.strerror)
            self._failures.labels("finish").inc()
        finally:
            os.close(file)  # also releases the lock

    def _open(self) -> None:
        self._path = self._folder.new_file(self._key)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            status = os.fstat(file)
        except OSError:
            os.close(file)
            raise
        self._file, self._identity = file, (status.st_dev, status.st_ino)
        self._size, self._opened = 0, time.monotonic()
