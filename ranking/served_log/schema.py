"""Format of the files of the served log: columns, sources of values, and the description in the metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from ranking.schema import Owner

FORMAT: Final = 1
"""Version of the format."""
METADATA_KEY: Final = b"ranker.served"
"""Key of a file's metadata that holds its ``ServedDescription`` as JSON."""
SHOWN: Final = "shown"
"""Label of feedback that marks the items that were shown, unless ``ranker join --shown`` names another."""
MISSING, REQUEST, STORE, BUNDLE, COMPUTED = range(5)
"""Sources of a value: none, the request, the feature store, a table of the bundle, or a counter or history."""
TIME = pa.timestamp("us", "UTC")
"""Type of the time of a request."""


@dataclass(frozen=True)
class ServedColumn:
    """A column of features in the served log.

    Attributes:
        name: name in the log of the model.
        owner: user, context or item.
        kind: kind of the feature.
        type: type of one value; "null" if the file has no value.
        computed: whether it is that of a counter or history.
    """

    name: str
    owner: Owner
    kind: str
    type: str
    computed: bool

    @property
    def stored(self) -> str:
        """Name in the served log."""
        return stored_column(self.owner, self.name)


@dataclass(frozen=True)
class ServedDescription:
    """Description of a file.

    Attributes:
        model: name of the model that answered.
        version: its version.
        repository: folder of its repository, as the service names it.
        hashed_users: whether hashes replace the user ids.
        zone: time zone of the service's machine; None if it is unknown.
        columns: columns of features.
    """

    model: str
    version: str
    repository: Path
    hashed_users: bool
    zone: str | None
    columns: tuple[ServedColumn, ...]

    def to_json(self) -> bytes:
        """Return the description as JSON."""
        document = vars(self) | {"repository": str(self.repository), "columns": [vars(c) for c in self.columns]}
        return json.dumps({"format": FORMAT} | document).encode()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ServedDescription:
        """Return the description in a parsed document of ``FORMAT``.

        Raises:
            LookupError, TypeError: The document is not a description.
        """
        columns = tuple(
            ServedColumn(c["name"], c["owner"], c.get("kind", ""), c.get("type", ""), c["computed"])
            for c in document["columns"]
        )
        where, hashed = Path(document["repository"]), document.get("hashed_users", False)
        return cls(document["model"], str(document["version"]), where, hashed, document.get("zone"), columns)


def local_zone() -> str | None:
    """Return the name of the time zone of this machine, such as Europe/Berlin; None if it has no name."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        name = Path("/etc/localtime").resolve().as_posix().rpartition("/zoneinfo/")[2]
    try:
        return ZoneInfo(name).key
    except (OSError, ValueError, LookupError):
        return None


def stored_column(owner: str, name: str) -> str:
    """Return the name of the column with the values of a feature."""
    return f"{owner}.{name}"


def source_column(owner: str) -> str:
    """Return the name of the column with the sources of an owner's values.

    A value of the column is binary, with one byte for each column of the owner, in the order of the metadata.
    """
    return f"source.{owner}"
