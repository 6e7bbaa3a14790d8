"""Names of the files of the served log and of feedback, which the service writes and the offline pipeline reads."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import LogError

TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Format of the time of creation in a name."""
TIME = re.compile(r"\d{8}T\d{6}Z")
PART_SUFFIX: Final = ".part"
"""Suffix of a file that is being written."""
RANDOM = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class LogName:
    """A name of a file.

    Attributes:
        created: time of its creation, after the arrival of its oldest content; None if the name has none.
        finished: whether the file is complete.
        own: whether the service gave the name.
        key: name of the API key whose content the file holds, or None.
    """

    created: datetime | None
    finished: bool
    own: bool
    key: str | None


@dataclass(frozen=True)
class LogNames:
    """The names of a log's files, which sort by the time of creation: ``PREFIX-TIME-RANDOM[-KEY].SUFFIX[.part]``.

    Attributes:
        prefix: first part of each name.
        suffix: last part of the name of a finished file.
        setting: setting of the service that names the folder, for messages.
        with_keys: whether names may have that of an API key.
    """

    prefix: str
    suffix: str
    setting: str
    with_keys: bool = False

    def start(self, created: datetime) -> str:
        """Return the part of the names of files that are created at a time."""
        return f"{self.prefix}-{created:{TIME_FORMAT}}"

    def new(self, key: str | None = None, created: datetime | None = None) -> str:
        """Return a name for a finished file that is created now, or whose oldest content is of this time."""
        end = "" if key is None else f"-{key}"
        return f"{self.start(created or datetime.now(UTC))}-{uuid.uuid4().hex[:12]}{end}{self.suffix}"

    def parse(self, name: str) -> LogName | None:
        """Return the parts of a name; None if it is not that of a file of this log."""
        stem = name.removesuffix(PART_SUFFIX)
        if not stem.startswith(f"{self.prefix}-") or not stem.endswith(self.suffix):
            return None
        time, _, rest = stem.removeprefix(f"{self.prefix}-").removesuffix(self.suffix).partition("-")
        created = None
        if TIME.fullmatch(time):
            with suppress(ValueError):  # an impossible time
                created = datetime.fromisoformat(time)  # a tenth of the time of strptime
        random, separator, key = rest.partition("-") if self.with_keys else (rest, "", "")
        own = TIME.fullmatch(time) is not None and RANDOM.fullmatch(random) is not None and bool(key) == bool(separator)
        return LogName(created, stem == name, own, key or None)

    def files_in(self, folder: Path) -> Sequence[tuple[Path, LogName]]:
        """Return the files of this log in a folder with the parts of their names, oldest first.

        Raises:
            LogError: the folder does not exist or cannot be read.
        """
        try:
            names = [(path, self.parse(path.name)) for path in sorted(folder.iterdir())]
        except OSError as error:
            reason = f"cannot be read ({os_error_text(error)}); name the {self.setting} of the service"
            raise LogError(f"{folder}: {reason}") from None
        return [(path, name) for path, name in names if name is not None]


SERVED = LogNames("served", ".parquet", "served_log")
FEEDBACK = LogNames("feedback", ".jsonl", "feedback_dir", with_keys=True)
