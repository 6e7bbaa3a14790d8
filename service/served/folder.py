"""The folder of the served log: its size, its retention, and unfinished files of ended processes."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ranking.artifacts.atomic_files import fsync
from service.output_folder import TIME_FORMAT, OutputFolder, unix_time

SUFFIX, PART_SUFFIX = ".parquet", ".parquet.part"
FILE_NAME = re.compile(r"served-(?P<time>\d{8}T\d{6}Z)-[0-9a-f]{12}\.parquet(?P<part>\.part)?")
"""Name of a file: time of its creation and a random number."""
UNLOCKED_SECONDS = 60.0
"""Age at which an unlocked unfinished file is removed; younger ones may not be locked yet."""
DAY_SECONDS = 86_400.0


class ServedFolder(OutputFolder):
    """A folder of finished files, which never change, and of unfinished ones, which their processes lock.

    Args:
        path: The folder; it is created if it does not exist.
        days: Age in days at which finished files are deleted.

    Raises:
        OutputError: The folder cannot be created or written.

    Attributes:
        max_bytes: Maximum size of the requests of a file in memory: unlimited.
    """

    max_bytes = math.inf

    def __init__(self, path: Path, days: float) -> None:
        super().__init__(path, "served log")
        self._seconds = days * DAY_SECONDS

    def scan(self) -> int:
        """Return the size of all files in bytes, after deleting expired and torn ones.

        Raises:
            OSError: The folder cannot be read; see also ``check``.
        """
        self.check()
        total = 0
        now = time.time()
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = FILE_NAME.fullmatch(entry.name)
                if name is None:
                    continue
                age = now - unix_time(name["time"])
                removed = _remove_torn(Path(entry.path), age) if name["part"] else False
                if not name["part"] and age > self._seconds:
                    with suppress(OSError):  # the next scan tries again
                        Path(entry.path).unlink(missing_ok=True)
                        removed = True
                if not removed:
                    with suppress(FileNotFoundError):  # renamed or collected in the meantime
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    def write(self, content: memoryview) -> Path:
        """Write a file; it is on disk and complete when this method returns.

        Returns:
            The path of the file.

        Raises:
            OSError: The file could not be written; nothing of it remains, if the filesystem permits that. The number is
                ``ESTALE`` if the file or the folder was removed while the file was written.
        """
        self.check()
        path = self.path / new_name()
        part = path.with_suffix(PART_SUFFIX)
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            while content:
                written = os.write(file, content)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                content = content[written:]
            os.fsync(file)
            part.rename(path)
        except FileNotFoundError:
            raise OSError(errno.ESTALE, f"{part} was removed while it was written") from None
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise
        finally:
            os.close(file)  # also releases the lock
        with suppress(OSError):  # the file is complete; only a power failure could still undo its name
            fsync(self.path)
        return path


def new_name() -> str:
    """Return the name of a new file."""
    return f"served-{datetime.now(UTC):{TIME_FORMAT}}-{uuid.uuid4().hex[:12]}{SUFFIX}"


def _remove_torn(path: Path, age: float) -> bool:
    """Remove an unfinished file unless its process is running; return whether it is gone."""
    if age > UNLOCKED_SECONDS:
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process that writes the file runs
            path.unlink()
    return not path.exists()
