"""Files of feedback that are read again only for the requests that need them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pipelines.loop.attribution import FUTURE, MAX_SKEW, MICROSECOND
from pipelines.loop.feedback_files import find_feedback_files, read_events

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Signature: TypeAlias = tuple[int, int]
"""Modification time and size of a file."""


@dataclass(frozen=True)
class _Feedback:
    """A file of feedback that was read.

    Attributes:
        signature: modification time and size.
        latest: time of its last event in microseconds; minus infinity without events.
        damage: message about damaged lines.
    """

    signature: Signature
    latest: float
    damage: str | None


class FeedbackReader:
    """Reads the files of feedback with events of some requests.

    Args:
        folder: folder of feedback.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, _Feedback] = {}

    @property
    def damage(self) -> list[str]:
        """Messages about damaged lines."""
        return [entry.damage for entry in self._files.values() if entry.damage is not None]

    def find_needed(self, start: int, first: int | None) -> list[Path]:
        """Return the files with events of pending requests, and those that were not read yet.

        Args:
            start: requests until then are left out.
            first: time of the first pending request; None if there is none.
        """
        signatures = {path: signature(path) for path in find_feedback_files(self._folder)}
        signatures = {path: found for path, found in signatures.items() if _may_be_later(found, start)}
        self._files = {path: entry for path, entry in self._files.items() if path in signatures}
        needed = []
        for path, found in signatures.items():
            entry = self._files.get(path)
            new = entry is None or entry.signature != found
            if new or (first is not None and entry is not None and entry.latest >= first - MAX_SKEW):
                needed.append(path)
        return needed

    def read(self, connection: DuckDBPyConnection, files: list[Path], work: Path) -> None:
        """Create the table ``events`` of some files, see ``read_events``; remember what they contain."""
        signatures = {path: signature(path) for path in files}
        damage = read_events(connection, files, work)
        latest = dict(connection.execute("SELECT file, max(t) FROM events GROUP BY file").fetchall())
        for path in files:
            self._files[path] = _Feedback(signatures[path], latest.get(str(path), -math.inf), damage.get(path))


def signature(path: Path) -> Signature:
    """Return the signature of a file; one that no file has if it was removed."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size


def _may_be_later(signature: Signature, start: int) -> bool:
    """Return whether a file of feedback may hold times after one in microseconds; clocks may differ by ``FUTURE``."""
    modified, _ = signature
    return modified // 1_000 + FUTURE // MICROSECOND > start
