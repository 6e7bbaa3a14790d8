"""The feedback folder: names and sizes of its files, files of ended processes, and its disappearance."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError

log = logging.getLogger("ranker.service")

PART_SUFFIX, FINISHED_SUFFIX = ".jsonl.part", ".jsonl"
TIME_FORMAT = "%Y%m%dT%H%M%SZ"
FILE_NAME = re.compile(r"feedback-(?P<time>\d{8}T\d{6}Z)-[0-9a-f]{12}(?:-(?P<key>.+))?\.jsonl(?P<part>\.part)?")
"""Name of a file: time of its creation, a random number, and the name of the API key whose feedback it holds."""
EMPTY_SECONDS = 60.0
"""Age at which an empty unfinished file is removed: its process ended between creating the file and the first write."""


@dataclass(frozen=True)
class FolderUsage:
    """Content of the folder at one time.

    Attributes:
        total: Size of all files in bytes.
        by_key: Size of the files of each API key in bytes.
        oldest_part: Unix time of the creation of the oldest unfinished file, or infinity if there is none.
    """

    total: int
    by_key: Mapping[str, int]
    oldest_part: float


class FeedbackFolder:
    """A folder that several processes and replicas may share; each of them locks the files that it writes.

    Args:
        path: The folder; it is created if it does not exist.

    Attributes:
        path: The folder.

    Raises:
        OutputError: The folder cannot be created or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._device = path.stat().st_dev
            self.scan()
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise OutputError(f"{path}: feedback cannot be written ({os_error_text(error)})") from None

    def new_file(self, key: str | None) -> Path:
        """Return the path of a new unfinished file for the feedback of an API key.

        Raises:
            OSError: See ``check``.
        """
        self.check()
        suffix = "" if key is None else f"-{key}"
        return self.path / f"feedback-{datetime.now(UTC):{TIME_FORMAT}}-{uuid.uuid4().hex[:12]}{suffix}{PART_SUFFIX}"

    def check(self) -> None:
        """Create the folder again if it was removed.

        Raises:
            OSError: The folder cannot be created, or is on another filesystem than at first: it was unmounted, and what
                is written there now would be hidden as soon as it is mounted again.
        """
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            log.error("the feedback folder %s was removed; created it again", self.path)
        if self.path.stat().st_dev != self._device:
            with suppress(OSError):
                self.path.rmdir()  # possibly created above; a folder with files is kept
            reason = f"{self.path} is on another filesystem than at the start: mount it again, or restart the service"
            raise OSError(errno.ENODEV, reason)

    def scan(self) -> FolderUsage:
        """Measure the files, and finish those that ended processes left.

        Raises:
            OSError: The folder cannot be read; see also ``check``.
        """
        self.check()
        total, oldest_part = 0, math.inf
        by_key: Counter[str] = Counter()
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = FILE_NAME.fullmatch(entry.name)
                if name is None:
                    continue
                try:
                    size = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # renamed or collected in the meantime
                    continue
                total += size
                if name["key"] is not None:
                    by_key[name["key"]] += size
                if name["part"] and not self._finish_orphan(Path(entry.path), name["time"]):
                    oldest_part = min(oldest_part, _unix_time(name["time"]))
        return FolderUsage(total, by_key, oldest_part)

    def _finish_orphan(self, path: Path, created: str) -> bool:
        """Finish or remove an unfinished file unless its process is running; return whether it is gone.

        Errors are left to the next scan; the age of the oldest unfinished file shows those that persist.
        """
        with suppress(OSError), path.open("r+b") as orphan:
            fcntl.flock(orphan, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process that writes the file runs
            if os.fstat(orphan.fileno()).st_size:
                os.fsync(orphan.fileno())
                path.rename(finished(path))
                log.warning("finished %s, left by a process that ended without finishing it", path.name)
                return True
            if time.time() - _unix_time(created) > EMPTY_SECONDS:  # younger ones may not be locked yet
                path.unlink()
                return True
        return not path.exists()


def finished(path: Path) -> Path:
    """Return the final path of an unfinished file."""
    return path.with_name(path.name.removesuffix(PART_SUFFIX) + FINISHED_SUFFIX)


def _unix_time(text: str) -> float:
    """Parse the time in the name of a file; a name of foreign origin may contain an impossible one."""
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.inf
