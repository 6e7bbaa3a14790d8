"""Format of the files of the served log, which the service writes and the offline pipeline reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

FORMAT: Final = 1
"""Version of the format."""
METADATA_KEY: Final = b"ranker.served"
"""Key of a file's metadata that holds JSON about the model and its columns."""
SHOWN: Final = "shown"
"""Label of feedback that marks the items that were shown, unless ``ranker join --shown`` names another."""
MISSING, REQUEST, STORE, BUNDLE, COMPUTED = range(5)
"""Sources of a value: none, the request, the feature store, a table of the bundle, or a counter or history."""


def local_zone() -> str | None:
    """Return the name of the time zone of this machine, such as Europe/Berlin; None if it has no name."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        name = Path("/etc/localtime").resolve().as_posix().rpartition("/zoneinfo/")[2]
    try:
        return ZoneInfo(name).key
    except (OSError, ValueError, LookupError):
        return None


def source_column(owner: str) -> str:
    """Return the name of the column with the sources of an owner's values.

    A value of the column is binary, with one byte for each column of the owner, in the order of the metadata.
    """
    return f"source.{owner}"
