"""The feedback folder: names and sizes of its files, and files of ended processes."""

from __future__ import annotations

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
from typing import BinaryIO

from service.output_folder import TIME_FORMAT, OutputFolder, unix_time

log = logging.getLogger("ranker.service")

PART_SUFFIX, FINISHED_SUFFIX = ".jsonl.part", ".jsonl"
FILE_NAME = re.compile(r"feedback-(?P<time>\d{8}T\d{6}Z)-[0-9a-f]{12}(?:-(?P<key>.+))?\.jsonl(?P<part>\.part)?")
"""Name of a file: time of its creation, a random number, and the name of the API key whose feedback it holds."""
EMPTY_SECONDS = 60.0
"""Age at which an unfinished file without a complete line is removed; its process ended early."""

BLOCK_BYTES = 64 * 1024
"""Size of the reads that search the end of the last complete line, from the end of a file."""


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


class FeedbackFolder(OutputFolder):
    """A folder that several processes and replicas may share; each of them locks the files that it writes.

    Args:
        path: The folder; it is created if it does not exist.

    Raises:
        OutputError: The folder cannot be created or written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "feedback")
        self.scan()

    def new_file(self, key: str | None) -> Path:
        """Return the path of a new unfinished file for the feedback of an API key.

        Raises:
            OSError: See ``check``.
        """
        self.check()
        suffix = "" if key is None else f"-{key}"
        return self.path / f"feedback-{datetime.now(UTC):{TIME_FORMAT}}-{uuid.uuid4().hex[:12]}{suffix}{PART_SUFFIX}"

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
                    oldest_part = min(oldest_part, unix_time(name["time"]))
        return FolderUsage(total, by_key, oldest_part)

    def _finish_orphan(self, path: Path, created: str) -> bool:
        """Finish or remove an unfinished file unless its process is running; return whether it is gone.

        Errors are left to the next scan; the age of the oldest unfinished file shows those that persist.
        """
        with suppress(OSError), path.open("r+b") as orphan:
            fcntl.flock(orphan, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process that writes the file runs
            if size := _size_of_lines(orphan):
                orphan.truncate(size)
                os.fsync(orphan.fileno())
                path.rename(finished(path))
                log.warning("finished %s, left by a process that ended without finishing it", path.name)
                return True
            if time.time() - unix_time(created) > EMPTY_SECONDS:  # younger ones may not be locked yet
                path.unlink()
                return True
        return not path.exists()


def finished(path: Path) -> Path:
    """Return the final path of an unfinished file."""
    return path.with_name(path.name.removesuffix(PART_SUFFIX) + FINISHED_SUFFIX)


def _size_of_lines(file: BinaryIO) -> int:
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
