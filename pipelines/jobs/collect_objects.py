"""``ranker collect`` from object storage: moves the files of a served log, or of feedback, to a folder."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipelines.console import print_status
from pipelines.loop.feedback_mark import FeedbackMark
from ranking.artifacts.atomic_files import remove_drafts, replace_file, write_errors, write_json
from ranking.artifacts.log_names import FEEDBACK, SERVED, LogNames
from ranking.artifacts.object_store import ObjectLocation, ObjectStore
from ranking.errors import BundleError, LogError

POLL_SECONDS = 10.0
"""Seconds between two listings while new files are awaited."""
FEEDBACK_SECONDS = 60.0
"""Minimum seconds between two files of feedback meanwhile."""
LATE = timedelta(seconds=30)
"""Time after its arrival at the service until which feedback is in object storage, or was not acknowledged."""
MAX_LISTED = 5_000
"""Maximum number of objects that are copied before the next listing."""
MAX_BYTES = 64 * 1024 * 1024
"""Size of the objects of feedback that become one file."""
MAX_OBJECT_BYTES = 1024**3
"""Maximum size of an object."""
THREADS = 16
"""Number of objects that are read at once."""
DELETED = 1_000
"""Number of objects that one request deletes."""
JOURNAL = ".collect.json"
"""File that names the objects of a file of feedback until they are deleted."""


def collect_objects(location: ObjectLocation, folder: Path, stop: threading.Event | None = None) -> int:
    """Copy objects to files, and then delete them.

    An object of a served log becomes the file of its name; one that exists is kept. Objects of feedback are merged.
    Other objects are left alone. A collection that was interrupted can be repeated: nothing is lost or copied twice.

    Args:
        location: location that the service writes.
        folder: folder of the files; it is created if it does not exist.
        stop: ends the collection; None: it ends when no objects are left.

    Returns:
        The number of files that were written.

    Raises:
        LogError: the location cannot be read.
        OutputError: a file cannot be written.
        ConfigError: obstore is not installed.
    """
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return _ObjectCollector(location, folder, pool).run(stop)
    except BundleError as error:
        raise LogError(str(error)) from None


class _ObjectCollector:
    """Moves the objects below a location.

    A file of feedback has the name of its first object. ``JOURNAL`` is written before the file and removed after the
    objects, so that the next collection knows which of them the file has.
    """

    def __init__(self, location: ObjectLocation, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._store, self._folder, self._pool = ObjectStore(location.text), folder, pool
        self._mark = FeedbackMark(folder, re.sub(r"[^A-Za-z0-9]+", "-", location.text))
        self._journal = folder / JOURNAL
        self._files = 0
        self._feedback_seconds = 0.0  # minimum seconds between two files of feedback
        self._next_feedback = 0.0

    def run(self, stop: threading.Event | None) -> int:
        """Collect until ``stop`` is set, or without it until no objects are left; return the number of files."""
        self._feedback_seconds = 0.0 if stop is None else FEEDBACK_SECONDS
        remove_drafts(self._folder)
        self._end_interrupted()
        complete = self._collect()
        while not (complete if stop is None else stop.wait(POLL_SECONDS if complete else 0)):
            try:
                complete = self._collect()
            except BundleError as error:
                if stop is None:
                    raise
                print_status(f"{error}; trying again")
                complete = True
        return self._files

    def _collect(self) -> bool:
        """Move the objects that are listed now; return whether these were all."""
        started = datetime.now(UTC)
        names = self._store.names(MAX_LISTED)
        complete = len(names) < MAX_LISTED
        for part in _parts(_own(names, SERVED), THREADS):
            self._move_served(part)
        feedback = _own(names, FEEDBACK)
        if feedback and not self._mark.exists():
            self._mark.set(datetime.fromtimestamp(0, UTC))
        if feedback and complete and time.monotonic() < self._next_feedback:
            return complete
        for contents in self._merged(feedback):
            self._next_feedback = time.monotonic() + self._feedback_seconds
            self._move_feedback(contents)
        if complete and self._mark.exists():
            self._mark.set(started - LATE)
        return complete

    def _move_served(self, names: list[str]) -> None:
        new = [name for name in names if not (self._folder / name).exists()]
        for name, content in zip(new, self._read(new), strict=True):
            if content is not None:
                replace_file(self._folder / name, [content], 0o640)
                self._files += 1
        self._store.delete(*names)

    def _merged(self, names: list[str]) -> Iterator[dict[str, bytes]]:
        """Yield the contents of objects by name, those that become a file together."""
        merged: dict[str, bytes] = {}
        size = 0
        for part in _parts(names, THREADS):
            for name, content in zip(part, self._read(part), strict=True):
                if content is None:
                    continue
                merged[name] = content
                size += len(content)
                if size >= MAX_BYTES:
                    yield merged
                    merged, size = {}, 0
        if merged:
            yield merged

    def _move_feedback(self, contents: dict[str, bytes]) -> None:
        names = list(contents)
        write_json({"file": names[0], "objects": names}, self._journal, 0o640)
        replace_file(self._folder / names[0], contents.values(), 0o640)
        self._files += 1
        self._delete(names)

    def _end_interrupted(self) -> None:
        """Delete the objects of the last file of feedback, if the collection that wrote it could not."""
        with suppress(FileNotFoundError):
            journal = json.loads(self._journal.read_text())
            if (self._folder / journal["file"]).exists():
                self._delete(journal["objects"])

    def _delete(self, names: list[str]) -> None:
        """Delete the objects of a file of feedback, and then the journal."""
        for part in _parts(names, DELETED):
            self._store.delete(*part)
        with write_errors(self._journal):
            self._journal.unlink()

    def _read(self, names: Iterable[str]) -> list[bytes | None]:
        """Return the contents of objects; None for one that no longer exists."""
        read: Callable[[str], bytes | None] = self._read_object
        return list(self._pool.map(read, names))

    def _read_object(self, name: str) -> bytes | None:
        found = self._store.read(name, MAX_OBJECT_BYTES)
        return None if found is None else found[0]


def _parts(names: list[str], size: int) -> Iterator[list[str]]:
    """Divide names into parts of a size, of which the last one may be smaller."""
    for start in range(0, len(names), size):
        yield names[start : start + size]


def _own(names: list[str], log: LogNames) -> list[str]:
    """Return the names that the service gave to files of a log."""
    parsed = ((name, log.parse(name)) for name in names)
    return [name for name, parts in parsed if parts is not None and parts.own and parts.finished]
