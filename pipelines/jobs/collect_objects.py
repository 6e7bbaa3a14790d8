"""``ranker collect`` from object storage: moves the files of a served log, or of feedback, to a folder."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from pipelines.console import print_status
from pipelines.loop.collected_feedback import MAX_BYTES
from pipelines.loop.feedback_mark import FEEDBACK_SECONDS, LATE, FeedbackMark
from pipelines.loop.folder_locks import lock_folder
from ranking.artifacts.atomic_files import remove_drafts, replace_file, write_errors, write_json
from ranking.artifacts.log_names import FEEDBACK, SERVED, LogNames
from ranking.artifacts.object_store import ObjectLocation, ObjectStore
from ranking.errors import BundleError, LogError

POLL_SECONDS = 10.0
"""Seconds between two listings while new files are awaited."""
MAX_LISTED = 5_000
"""Maximum number of objects that are copied before the next listing."""
MAX_OBJECT_BYTES = 1024**3
"""Maximum size of an object."""
THREADS = 16
"""Number of objects that are read at once."""
DELETED = 1_000
"""Number of objects that one request deletes."""


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
        LogError: the location cannot be read, or the journal is damaged.
        OutputError: a file cannot be written, or another collection of the location writes to the folder.
        ConfigError: obstore is not installed.
    """
    source = f"{re.sub(r'[^A-Za-z0-9]+', '-', location.text)}-{hashlib.sha256(location.text.encode()).hexdigest()[:8]}"
    state = folder / f".collect-{source}"
    with write_errors(folder):
        state.mkdir(parents=True, exist_ok=True)
    busy = f"{folder}: another 'ranker collect {location}' writes here: stop it first"
    try:
        with lock_folder(state, busy), ThreadPoolExecutor(THREADS) as pool:
            return _ObjectCollector(location, folder, source, state / "journal.json", pool).run(stop)
    except BundleError as error:
        raise LogError(str(error)) from None


class _ObjectCollector:
    """Moves the objects below a location.

    The journal names the objects of a file of feedback, from before it is written until they are deleted, so that no
    object becomes part of two files.
    """

    def __init__(
        self, location: ObjectLocation, folder: Path, source: str, journal: Path, pool: ThreadPoolExecutor
    ) -> None:
        self._store, self._folder, self._journal, self._pool = ObjectStore(location.text), folder, journal, pool
        self._mark = FeedbackMark(folder, source)
        self._files = 0
        self._feedback_seconds = 0.0  # minimum seconds between two files of feedback
        self._next_feedback = 0.0

    def run(self, stop: threading.Event | None) -> int:
        """Collect until ``stop`` is set, or without it until no objects are left; return the number of files."""
        self._feedback_seconds = 0.0 if stop is None else FEEDBACK_SECONDS
        remove_drafts(self._folder)
        complete, failure = self._collect(), ""
        while not (complete if stop is None else stop.wait(POLL_SECONDS if complete else 0)):
            try:
                complete, failure = self._collect(), ""
            except BundleError as error:
                if stop is None:
                    raise
                if str(error) != failure:
                    print_status(f"{error}; trying again")
                complete, failure = True, str(error)
        return self._files

    def _collect(self) -> bool:
        """Move the objects that are listed now; return whether these were all."""
        self._end_interrupted()
        started = datetime.now(UTC)
        names = self._store.names(lambda name: _is_own(name, SERVED) or _is_own(name, FEEDBACK), MAX_LISTED)
        complete = len(names) < MAX_LISTED
        served = [name for name in names if _is_own(name, SERVED)]
        feedback = [name for name in names if _is_own(name, FEEDBACK)]
        for part in _parts(served, THREADS):
            self._move_served(part)
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
        """Write a file with the time of its first object, and delete the objects."""
        names = list(contents)
        first = FEEDBACK.parse(names[0])
        assert first is not None
        file = FEEDBACK.new(created=first.created)  # never the name of an object, which may be stored again
        journal = {"file": file, "objects": names}
        write_json(journal | {"written": False}, self._journal, 0o640)
        replace_file(self._folder / file, contents.values(), 0o640)
        write_json(journal | {"written": True}, self._journal, 0o640)
        self._files += 1
        self._delete(names)

    def _end_interrupted(self) -> None:
        """Delete the objects of the last file of feedback, if this or an earlier collection could not.

        Raises:
            LogError: the journal is damaged.
        """
        try:
            journal = json.loads(self._journal.read_text())
            file, names, written = str(journal["file"]), list(map(str, journal["objects"])), journal["written"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LogError(
                f"{self._journal}: is damaged ({type(error).__name__}); delete it to continue: the events of the last "
                "file of feedback may then be collected twice"
            ) from None
        if written or (self._folder / file).exists():
            self._delete(names)

    def _delete(self, names: list[str]) -> None:
        """Delete the objects of a file of feedback, and then the journal."""
        for part in _parts(names, DELETED):
            self._store.delete(*part)
        with write_errors(self._journal):
            self._journal.unlink()

    def _read(self, names: list[str]) -> list[bytes | None]:
        """Return the contents of objects; None for one that no longer exists."""
        return list(self._pool.map(self._read_object, names))

    def _read_object(self, name: str) -> bytes | None:
        found = self._store.read(name, MAX_OBJECT_BYTES)
        return None if found is None else found[0]


def _parts(names: list[str], size: int) -> Iterator[list[str]]:
    """Divide names into parts of a size, of which the last one may be smaller."""
    for start in range(0, len(names), size):
        yield names[start : start + size]


def _is_own(name: str, log: LogNames) -> bool:
    """Return whether the service gave this name to a finished file of a log."""
    parts = log.parse(name)
    return parts is not None and parts.own and parts.finished
