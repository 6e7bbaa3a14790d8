"""Files of complete lines, one per API key, that are appended to and finished at a size or age."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from typing import BinaryIO

from prometheus_client import Counter

from service.logs.log_folder import LogFolder, UnfinishedFile
from service.logs.sink import LogSink, LogUsage

log = logging.getLogger("ranker.service")

MAX_OPEN_FILES = 100
"""Maximum number of unfinished files of a process, one per API key; beyond it the oldest is finished early."""
BLOCK_BYTES = 64 * 1024
"""Size of the reads that search the end of the last complete line, from the end of a file."""


class RotatingFiles(LogSink):
    """Appends lines to an unfinished file of their API key, and finishes the file at a size or age.

    Args:
        folder: folder of the files; its unfinished files are recovered with ``size_of_lines``.
        max_bytes: size in bytes at which a file is finished.
        max_seconds: age in seconds at which a file is finished.
        failures: counter of failures with the label ``operation``.
    """

    def __init__(self, folder: LogFolder, max_bytes: int, max_seconds: float, failures: Counter) -> None:
        self._folder, self._max_bytes, self._max_seconds = folder, max_bytes, max_seconds
        self._failures = failures
        self._files: dict[str | None, UnfinishedFile] = {}

    def write(self, content: bytes | memoryview, key: str | None = None) -> None:
        """Append complete lines: either all of them or none, unless the process is killed.

        When this method returns, the lines are in a file at its place in the folder. A kill before that may leave some
        of them; a scan removes an incomplete one.

        Args:
            content: the lines.
            key: name of their API key, or None without keys.

        Raises:
            OSError: the lines could not be written.
        """
        if not self._is_open(key):
            if len(self._files) >= MAX_OPEN_FILES:
                self._finish(min(self._files, key=lambda other: self._files[other].opened))
            self._files[key] = self._folder.open_file(key)
        file = self._files[key]
        file.append(content)
        if not self._is_open(key) or (file.size >= self._max_bytes and not self._finish(key)):
            raise OSError(errno.ESTALE, "the feedback file was removed while it was written")

    def scan(self) -> LogUsage:
        """Measure the files of all processes, see ``LogFolder.scan``.

        Raises:
            OSError: the folder cannot be read.
        """
        for key in list(self._files):
            self._is_open(key)
        return self._folder.scan()

    def maintain(self, *, closing: bool = False) -> float:
        """Finish the files that have reached their maximum age, or all."""
        latest = math.inf if closing else time.monotonic() - self._max_seconds
        for key in [key for key, file in self._files.items() if file.opened <= latest]:
            self._finish(key)
        oldest = min((file.opened for file in self._files.values()), default=math.inf)
        return max(0.0, oldest + self._max_seconds - time.monotonic())

    def _is_open(self, key: str | None) -> bool:
        """Return whether a key has a file that is at its path; forget a file that is not, and log the loss."""
        file = self._files.get(key)
        if file is None or file.is_in_place():
            return file is not None
        del self._files[key]
        self._report_loss(file, "moved or unmounted" if file.close() else "deleted")
        return False

    def _report_loss(self, file: UnfinishedFile, fate: str) -> None:
        log.error("%s was %s while it was written, with %d bytes of accepted feedback", file.path, fate, file.size)
        self._failures.labels("lost").inc()

    def _finish(self, key: str | None) -> bool:
        """Finish a file; remove an empty one, whose first write failed. Return False if the lines are lost.

        If it fails, the error is logged and the lines stay in the unfinished file; the next scan tries again.
        """
        if not self._is_open(key):
            return False
        file = self._files.pop(key)
        try:
            if file.size:
                file.finish()
            else:
                file.close()
                file.path.unlink()
        except OSError as error:
            if error.errno == errno.ESTALE:
                self._report_loss(file, "deleted")
                return False
            log.error("%s cannot be finished: %s", file.path, error.strerror)
            self._failures.labels("finish").inc()
        return True


def size_of_lines(file: BinaryIO) -> int:
    """Return the size of the complete lines; a process that is killed during a write leaves an incomplete one."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
