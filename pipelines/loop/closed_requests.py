"""Rows of the served log whose labels have become known, for a reader that keeps its own positions.

The reader remembers files only to read them less often. All that decides which rows it yields are the files and the
positions.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.counters.database import empty_database
from pipelines.loop.attribution import FUTURE, MAX_SKEW, Attribution, LabelColumns
from pipelines.loop.feedback_files import find_feedback_files, read_events
from pipelines.loop.request_ids import MAX_IDS, hash_ids
from pipelines.loop.rows import RowLayout, add_labels
from pipelines.loop.served_files import (
    NAME_START,
    TIME,
    Candidates,
    DamagedFileError,
    ServedFile,
    choose_model,
    creation_time,
    find_served_files,
)
from pipelines.loop.served_version import ServedVersion, in_one_zone, open_versions
from pipelines.loop.sources import LoopSources
from ranking.encoding.vocabulary import IdArray
from ranking.temporary_folders import temporary_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

REPEATED = timedelta(hours=1)
"""Time after an answer in which a client may repeat its request id."""
CHUNK_ROWS = 16_384
"""Rows of a chunk; requests of the same time are in the same chunk."""


Signature: TypeAlias = tuple[int, int]
"""Modification time and size of a file."""
Ids: TypeAlias = tuple[IdArray, npt.NDArray[np.uint64]]
"""Times of the requests of a file in microseconds, and hashes of their ids."""


@dataclass(frozen=True)
class Window:
    """Requests whose window has closed. Times are in microseconds since 1970, UTC.

    Attributes:
        name: name of the window.
        length: time after an impression in which events count.
        until: time of the last request whose window has closed.
        start: requests until then are left out.
        positions: by the name of a file, the time of the last request that was used; None if all were.
    """

    name: str
    length: int
    until: int
    start: int
    positions: Mapping[str, int | None]

    def position(self, name: str) -> int | None:
        """Return the time until which a file was used; None if all of it was."""
        position = self.positions.get(name, self.start)
        return None if position is None else max(position, self.start)


@dataclass(frozen=True)
class ClosedRows:
    """Labeled rows of requests of one file.

    Attributes:
        window: the window.
        file: the file.
        rows: the rows; None if all requests repeat others.
        position: position of the file when these rows are used.
    """

    window: Window
    file: Path
    rows: pa.Table | None
    position: int | None


@dataclass
class _Served:
    """A file of the served log.

    Attributes:
        file: its description.
        next: by the name of a window, a position and the time of the first request after it.
        earliest: time of its first request in microseconds; None if it is unknown.
    """

    file: ServedFile
    next: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    earliest: int | None = None


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


class ClosedRequests:
    """Reads the requests of one model whose windows have closed, with the labels that feedback gives them.

    Args:
        sources: the served log and feedback; ``model`` and ``repository`` are set.
        version: name of the version whose columns the rows have.
    """

    def __init__(self, sources: LoopSources, version: str) -> None:
        assert sources.model is not None
        assert sources.repository is not None
        self._sources, self._version = sources, version
        self._current = ServedVersion.open(sources.repository, sources.model, version)
        self._served: dict[Path, _Served] = {}
        self._feedback: dict[Path, _Feedback] = {}
        self._damaged: dict[Path, tuple[Signature, str]] = {}
        self._signatures: dict[Path, Signature] = {}
        self._ids: dict[Path, Ids] = {}

    @property
    def left_out(self) -> list[str]:
        """Messages about damaged files and lines."""
        served = [message for _, message in self._damaged.values()]
        return served + [entry.damage for entry in self._feedback.values() if entry.damage is not None]

    def newest_file(self) -> ServedFile | None:
        """Return the newest file of the served log that ``read`` has found."""
        return next((entry.file for entry in reversed(self._served.values())), None)

    def read(self, windows: Sequence[Window]) -> Generator[ClosedRows]:
        """Yield the rows of requests between the positions and the end of each window.

        Raises:
            LogError: a file cannot be read; damaged ones are left out.
            BundleError: a version that answered requests is not in the repository, or it is damaged.
            UsageError: the served log has requests of other models only.
            OutputError: memory or disk space run out.
        """
        start = min(window.start for window in windows)
        self._find_served(start)
        pending = {window.name: self._pending(window) for window in windows}
        first = min((time for files in pending.values() for time in files.values()), default=None)
        feedback = self._needed_feedback(start, first)
        if first is None and not feedback:
            return
        with (
            temporary_folder("follow") as work,
            empty_database(work, f"{self._sources.served}: requests cannot be read") as connection,
        ):
            self._read_events(connection, feedback, work)
            needed: dict[Path, Ids] = {}
            for window in windows:
                if pending[window.name]:
                    yield from self._rows(connection, window, list(pending[window.name]), needed)
            self._ids = needed

    def _find_served(self, start: int) -> None:
        """Find the files that may hold requests after a time."""
        paths = find_served_files(self._sources.served)
        self._signatures = {path: _signature(path) for path in paths}  # before a file is read
        for path, (signature, _) in list(self._damaged.items()):
            if self._signatures.get(path) != signature:
                del self._damaged[path]
        opened = {}
        for path in paths:
            if not _may_be_later(self._signatures[path], start):
                continue
            if path in self._served:
                opened[path] = self._served[path]
            elif path not in self._damaged:
                try:
                    opened[path] = _Served(ServedFile.open(path))
                except DamagedFileError as error:
                    self._leave_out(error)
        choose_model([entry.file for entry in opened.values()], self._sources.model)
        self._served = opened

    def _leave_out(self, error: DamagedFileError) -> None:
        self._damaged[error.path] = self._signatures[error.path], str(error)
        self._served.pop(error.path, None)

    def _pending(self, window: Window) -> dict[Path, int]:
        """Return the files with requests that the window closed, and the time of the first one of each."""
        pending = {}
        for path, entry in list(self._served.items()):
            position = window.position(path.name)
            if position is None or entry.file.model != self._sources.model:
                continue
            known = entry.next.get(window.name)
            if known is None or known[0] != position:
                try:
                    times = entry.file.requests()["t"].to_numpy()
                except DamagedFileError as error:
                    self._leave_out(error)
                    continue
                later = times[times > position]
                entry.earliest = int(times.min()) if len(times) else None
                known = entry.next[window.name] = position, int(later.min()) if len(later) else None
            if known[1] is not None and known[1] <= window.until:
                pending[path] = known[1]
        return pending

    def _needed_feedback(self, start: int, first: int | None) -> list[Path]:
        """Return the files with events of pending requests, and those that were not read yet.

        Args:
            start: requests until then are left out.
            first: time of the first pending request; None if there is none.
        """
        files = [path for path in find_feedback_files(self._sources.feedback) if _may_be_later(_signature(path), start)]
        self._feedback = {path: entry for path, entry in self._feedback.items() if path in files}
        needed = []
        for path in files:
            entry = self._feedback.get(path)
            new = entry is None or entry.signature != _signature(path)
            if new or (first is not None and entry is not None and entry.latest >= first - MAX_SKEW):
                needed.append(path)
        return needed

    def _read_events(self, connection: DuckDBPyConnection, files: list[Path], work: Path) -> None:
        signatures = {path: _signature(path) for path in files}
        damage = read_events(connection, files, work)
        latest = dict(connection.execute("SELECT file, max(t) FROM events GROUP BY file").fetchall())
        for path in files:
            self._feedback[path] = _Feedback(signatures[path], latest.get(str(path), -math.inf), damage.get(path))

    def _rows(
        self, connection: DuckDBPyConnection, window: Window, paths: list[Path], needed: dict[Path, Ids]
    ) -> Iterator[ClosedRows]:
        """Yield the rows of pending files; add the ids that were needed to ``needed``."""
        files = [self._served[path].file for path in paths if path in self._served]
        versions = open_versions(files, self._sources.repository)
        versions.pop(self._version, None)
        versions = in_one_zone(versions | {self._version: self._current}, self._current.zone)
        labels = LabelColumns.of([version.schema for version in versions.values()])
        known = self._known_ids(window, paths[0], needed)
        attribution = Attribution(connection, window.length, labels, self._sources.shown, known)
        layout, remaining = RowLayout(files, versions, labels), {}
        for number, file in enumerate(files):
            try:
                remaining[number] = attribution.add(number, file, window.position(file.path.name), window.until)
            except DamagedFileError as error:
                self._leave_out(error)
        attribution.resolve()
        for number, later in remaining.items():
            file = files[number]
            position, requests = window.until if later else None, attribution.rows(number)
            if not len(requests):
                yield ClosedRows(window, file.path, None, position)
                continue
            try:
                candidates = Candidates(file, requests)
            except DamagedFileError as error:
                self._leave_out(error)
                continue
            for rows, used in _chunks(layout.rows(file, candidates), candidates, attribution):
                yield ClosedRows(window, file.path, rows, position if used is None else used)

    def _known_ids(self, window: Window, first: Path, needed: dict[Path, Ids]) -> npt.NDArray[np.uint64]:
        """Return the hashes of the ids of requests that were used, and that a request in a file may repeat.

        Args:
            window: the window.
            first: the file.
            needed: gets the ids.
        """
        created = creation_time(first)
        start = "" if created is None else f"{created - REPEATED:{NAME_START}}"
        hashes = [np.empty(0, np.uint64)]
        for path, entry in list(self._served.items()):
            position = window.position(path.name)
            unused = position is not None and entry.earliest is not None and entry.earliest > position
            if unused or path.name < start or entry.file.model != self._sources.model:
                continue
            try:
                times, ids = needed[path] = needed.get(path) or self._ids.get(path) or _ids(entry.file)
            except DamagedFileError as error:
                self._leave_out(error)
                continue
            hashes.append(ids if position is None else ids[times <= position])
        return np.concatenate(hashes)[-MAX_IDS:]


def _chunks(rows: pa.Table, candidates: Candidates, attribution: Attribution) -> Iterator[tuple[pa.Table, int | None]]:
    """Yield labeled rows in the order of time, and the time of the last one; None for the last chunk."""
    labels, is_row = attribution.labels(candidates.shared("request_id"), candidates.items("item_id"))
    times: IdArray = candidates.shared("time").cast(TIME).cast(pa.int64()).filter(is_row.combine_chunks()).to_numpy()
    rows, order, start = add_labels(rows, labels, is_row), np.argsort(times, kind="stable"), 0
    times = times[order]
    while len(times) - start > CHUNK_ROWS:
        stop = int(np.searchsorted(times, times[start + CHUNK_ROWS], "left"))
        if stop == start:
            stop = int(np.searchsorted(times, times[start], "right"))
        yield rows.take(order[start:stop]), int(times[stop - 1])
        start = stop
    yield rows.take(order[start:]), None


def _ids(file: ServedFile) -> Ids:
    """Read the times and the hashes of the ids of a file's requests.

    Raises:
        DamagedFileError: the file is damaged.
        LogError: the file cannot be read.
    """
    requests = file.requests()
    return requests["t"].to_numpy(), hash_ids(requests["request_id"])


def _signature(path: Path) -> Signature:
    """Return that of a file, or one that no file has if it was removed."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_mtime_ns, status.st_size


def _may_be_later(signature: Signature, start: int) -> bool:
    """Return whether a file may hold times after one in microseconds; clocks may differ by ``FUTURE``."""
    modified, _ = signature
    return modified // 1_000 + FUTURE // timedelta(microseconds=1) > start
