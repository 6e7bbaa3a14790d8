"""Names of the files of the served log and of feedback, which the service writes and the offline pipeline reads."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Format of the time of creation in a name."""
PART_SUFFIX: Final = ".part"
"""Suffix of a file that is being written."""
OWN_NAME = re.compile(r"[0-9a-f]{12}(?:-(?P<key>.+))?")
"""What the service writes between the time and the suffix: a random number, and the name of an API key."""


@dataclass(frozen=True)
class LogName:
    """A name of a file.

    Attributes:
        created: Time of its creation, after the arrival of its oldest content; None if the name has none.
        finished: Whether the file is complete.
        own: Whether the service gave the name.
        key: Name of the API key whose content the file holds, or None.
    """

    created: datetime | None
    finished: bool
    own: bool
    key: str | None


@dataclass(frozen=True)
class LogNames:
    """The names of a log's files, which sort by the time of creation: ``PREFIX-TIME-RANDOM[-KEY].SUFFIX[.part]``.

    Attributes:
        prefix: First part of each name.
        suffix: Last part of the name of a finished file.
    """

    prefix: str
    suffix: str

    def start(self, created: datetime) -> str:
        """Return the part of the names of files that are created at a time."""
        return f"{self.prefix}-{created:{TIME_FORMAT}}"

    def new(self, key: str | None = None) -> str:
        """Return a name for a finished file that is created now."""
        end = "" if key is None else f"-{key}"
        return f"{self.start(datetime.now(UTC))}-{uuid.uuid4().hex[:12]}{end}{self.suffix}"

    def parse(self, name: str) -> LogName | None:
        """Return the parts of a name; None if it is not that of a file of this log."""
        stem = name.removesuffix(PART_SUFFIX)
        if not stem.startswith(f"{self.prefix}-") or not stem.endswith(self.suffix):
            return None
        time, _, rest = stem.removeprefix(f"{self.prefix}-").removesuffix(self.suffix).partition("-")
        created = None
        with suppress(ValueError):  # not a time, as in a name of foreign origin
            created = datetime.fromisoformat(time).replace(tzinfo=UTC)
        own = OWN_NAME.fullmatch(rest)
        return LogName(created, stem == name, own is not None, own and own["key"])


SERVED = LogNames("served", ".parquet")
FEEDBACK = LogNames("feedback", ".jsonl")
