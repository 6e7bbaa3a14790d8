"""The folder of a log: its files, their locks, retention, and files of ended processes."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ranking.artifacts.atomic_files import fsync, os_error_text
from ranking.artifacts.log_names import PART_SUFFIX, LogNames
from ranking.errors import OutputError
from service.logs.sink import LogSink, LogUsage

log = logging.getLogger("ranker.service")

UNLOCKED_SECONDS = 60.0
"""Age at which an unlocked unfinished file without complete content is removed; younger ones may not be locked yet."""
DAY_SECONDS = 86_400.0


class UnfinishedFile:
    """An unfinished file, locked by the process that writes it.

    Args:
        path: path of the finished file.

    Attributes:
        path: path of the unfinished file.
        size: size in bytes.
        opened: ``time.monotonic()`` of its creation.

    Raises:
        OSError: the file cannot be created or locked.
    """

    def __init__(self, path: Path) -> None:
        self._finished, self.path = path, path.with_name(path.name + PART_SUFFIX)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            status = os.fstat(self._file)
        except OSError:  # a filesystem without locks
            os.close(self._file)
            self.path.unlink()
            raise
        self._identity = status.st_dev, status.st_ino
        self.size, self.opened = 0, time.monotonic()

    def append(self, content: bytes | memoryview) -> None:
        """Append all of the content, or nothing unless the process is killed.

        Raises:
            OSError: the content could not be written.
        """
        remaining = memoryview(content)
        try:
            while remaining:
                written = os.write(self._file, remaining)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                remaining = remaining[written:]
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(content)

    def is_in_place(self) -> bool:
        """Return whether the file is at its path: it may be removed, moved or unmounted while it is written."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 — half the time of Path.stat
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def close(self) -> bool:
        """Close the file without finishing it, which releases its lock; return whether it still exists somewhere."""
        try:
            return os.fstat(self._file).st_nlink > 0
        except OSError:  # deleted by another client of a network filesystem
            return False
        finally:
            os.close(self._file)

    def finish(self) -> Path:
        """Flush the file to disk, rename it and close it.

        Returns:
            The path of the finished file.

        Raises:
            OSError: the file is not finished. The number is ``ESTALE`` if it was removed.
        """
        try:
            os.fsync(self._file)
            self.path.rename(self._finished)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, f"{self.path} was removed while it was written") from None
        finally:
            os.close(self._file)  # also releases the lock
        with suppress(OSError):  # the file is complete; only a power failure could still undo its name
            fsync(self._finished.parent)
        return self._finished


class LogFolder(LogSink):
    """A folder that several processes and replicas may share.

    Args:
        path: the folder; it is created if it does not exist.
        names: names of its files.
        content: description of its content, for messages.
        days: age in days at which finished files are deleted.
        recover: function that returns the size of the complete content of an unfinished file.

    Attributes:
        path: the folder.

    Raises:
        OutputError: the folder cannot be created or written.
    """

    def __init__(
        self,
        path: Path,
        names: LogNames,
        content: str,
        *,
        days: float = math.inf,
        recover: Callable[[BinaryIO], int] = lambda _: 0,
    ) -> None:
        self.path, self._names, self._content = path, names, content
        self._max_age, self._recover = days * DAY_SECONDS, recover
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._device = path.stat().st_dev
            with os.scandir(path):
                pass
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise OutputError(f"{path}: {content} cannot be written ({os_error_text(error)})") from None

    def open_file(self, key: str | None = None) -> UnfinishedFile:
        """Create an unfinished file.

        Args:
            key: name of the API key whose content the file is to hold, or None.

        Raises:
            OSError: the file cannot be created; see also ``_check``.
        """
        self._check()
        return UnfinishedFile(self.path / self._names.new(key))

    def write(self, content: bytes | memoryview, key: str | None = None) -> Path:
        """Write a file; it is on disk and complete when this method returns.

        Args:
            content: the content.
            key: name of the API key whose content it is, or None.

        Returns:
            The path of the file.

        Raises:
            OSError: the file could not be written; nothing of it remains, if the filesystem permits that. The number is
                ``ESTALE`` if the file or the folder was removed while the file was written.
        """
        file = self.open_file(key)
        try:
            try:
                file.append(content)
            except OSError:
                file.close()
                raise
            return file.finish()
        except OSError:
            with suppress(OSError):
                file.path.unlink()
            raise

    def scan(self) -> LogUsage:
        """Measure the files, delete those that have expired, and finish or remove those that ended processes left.

        Raises:
            OSError: the folder cannot be read; see also ``_check``.
        """
        self._check()
        now, total, oldest_part = time.time(), 0, math.inf
        by_key: Counter[str] = Counter()
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = self._names.parse(entry.name)
                if name is None or not name.own:
                    continue
                created = math.inf if name.created is None else name.created.timestamp()
                tend = self._expire if name.finished else self._end_orphan
                path = tend(Path(entry.path), now - created)
                if path is None:
                    continue
                if path.name.endswith(PART_SUFFIX):
                    oldest_part = min(oldest_part, created)
                with suppress(FileNotFoundError):  # renamed or collected in the meantime
                    size = path.lstat().st_size
                    total += size
                    if name.key is not None:
                        by_key[name.key] += size
        return LogUsage(total, by_key, oldest_part)

    def _check(self) -> None:
        """Create the folder again if it was removed.

        Raises:
            OSError: the folder cannot be created, or is on another filesystem than at first: it was unmounted, and what
                is written there now would be hidden as soon as it is mounted again.
        """
        created = not self.path.is_dir()
        if created:
            self.path.mkdir(parents=True, exist_ok=True)
        if self.path.stat().st_dev != self._device:
            if created:  # otherwise it is the place where the filesystem is to be mounted again
                with suppress(OSError):
                    self.path.rmdir()
            reason = f"{self.path} is on another filesystem than at the start: mount it again, or restart the service"
            raise OSError(errno.ENODEV, reason)
        if created:
            log.error("the %s folder %s was removed; created it again", self._content, self.path)

    def _expire(self, path: Path, age: float) -> Path | None:
        """Delete a finished file that has expired; return the path of what remains, or None."""
        if age > self._max_age:
            with suppress(OSError):  # the next scan tries again
                path.unlink(missing_ok=True)
                return None
        return path

    def _end_orphan(self, path: Path, age: float) -> Path | None:
        """Finish or remove an unfinished file unless its process is running.

        Errors are left to the next scan; the age of the oldest unfinished file shows those that persist.

        Returns:
            The path of what remains: the same, or that of the finished file; None if the file is gone.
        """
        try:
            with path.open("r+b") as orphan:
                fcntl.flock(orphan, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process that writes the file runs
                if size := self._recover(orphan):
                    orphan.truncate(size)
                    os.fsync(orphan.fileno())
                    finished = path.rename(path.with_name(path.name.removesuffix(PART_SUFFIX)))
                    log.warning("finished %s, left by a process that ended without finishing it", path.name)
                    return finished
                if age > UNLOCKED_SECONDS:
                    path.unlink()
                    return None
        except FileNotFoundError:
            return None
        except OSError:
            pass
        return path
