"""Rows of the served log whose labels have become known, for a reader that keeps its own positions.

The reader remembers files only to read them less often. All that decides which rows it yields are the files and the
positions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.counters.database import empty_database
from pipelines.loop.attribution import FUTURE, Attribution, LabelColumns, microseconds
from pipelines.loop.feedback_reader import FeedbackReader, Signature, signature
from pipelines.loop.request_ids import MAX_IDS, hash_ids
from pipelines.loop.rows import RowLayout, add_labels
from pipelines.loop.served_version import ServedVersion, in_one_zone, open_versions
from pipelines.loop.sources import LoopSources
from ranking.artifacts.log_names import SERVED
from ranking.encoding.vocabulary import IdArray
from ranking.served_log.reader import (
    DamagedFileError,
    ServedCandidates,
    ServedFile,
    creation_time,
    find_served_files,
)
from ranking.served_log.schema import TIME
from ranking.temporary_folders import temporary_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LATEST = np.iinfo(np.int64).max
"""Time of a request that does not exist."""
USED = "all"
"""Position of a file of which all requests were used."""
REPEATED = timedelta(hours=1)
"""Time after an answer in which a client may repeat its request id."""
CHUNK_ROWS = 16_384
"""Rows of a chunk; requests of the same time are in the same chunk."""


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
        positions: by the name of a file, ``USED``, or the time of the last request that was used as text.
    """

    name: str
    length: int
    until: int
    start: int
    positions: Mapping[str, str]

    def position(self, name: str) -> int | None:
        """Return the time until which a file was used; None if all of it was."""
        position = self.positions.get(name, "")
        return None if position == USED else max(int(position or self.start), self.start)


@dataclass(frozen=True)
class ClosedRows:
    """Labeled rows of requests of one file.

    Attributes:
        window: the window.
        file: the file.
        rows: the rows; None if all requests repeat others.
        before: position of the file before these rows; None if it had none.
        position: position of the file when these rows are used.
    """

    window: Window
    file: ServedFile
    rows: pa.Table | None
    before: str | None
    position: str


@dataclass
class _Served:
    """A file of the served log that is not used in all windows.

    Attributes:
        is_other: whether its requests are those of another model.
        earliest: time of its first request in microseconds; ``LATEST`` without requests.
        next: by the name of a window, a position, and the time of the first request after it or ``LATEST``.
    """

    is_other: bool
    earliest: int = LATEST
    next: dict[str, tuple[int, int]] = field(default_factory=dict)


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
        self._feedback = FeedbackReader(sources.feedback)
        self._damaged: dict[Path, tuple[Signature, str]] = {}
        self._paths: list[Path] = []
        self._ids: dict[Path, Ids] = {}

    @property
    def left_out(self) -> list[str]:
        """Messages about damaged files and lines."""
        served = [message for _, message in self._damaged.values()]
        return served + self._feedback.damage

    def read(self, windows: Sequence[Window]) -> Generator[ClosedRows]:
        """Yield the rows of requests between the positions and the end of each window.

        Raises:
            LogError: a file cannot be read; damaged ones are left out.
            BundleError: a version that answered requests is not in the repository, or it is damaged.
            OutputError: memory or disk space run out.
        """
        start = min(window.start for window in windows)
        self._paths = self._find_served(start)
        pending = self._pending(windows)
        first = min((time for files in pending.values() for time in files.values()), default=None)
        feedback = self._feedback.find_needed(start, first)
        if first is None and not feedback:
            return
        with (
            temporary_folder("follow") as work,
            empty_database(work, f"{self._sources.served}: requests cannot be read") as connection,
        ):
            self._feedback.read(connection, feedback, work)
            needed: dict[Path, Ids] = {}
            for window in windows:
                if pending[window.name]:
                    yield from self._rows(connection, window, list(pending[window.name]), needed)
            if first is not None:
                self._ids = needed

    def _find_served(self, start: int) -> list[Path]:
        """Return the files that may hold requests after a time and are not damaged, oldest first."""
        paths = []
        for path in find_served_files(self._sources.served):
            created = creation_time(path)  # after the arrival of its requests
            if created is None or microseconds(created + FUTURE) > start:
                paths.append(path)
        present = set(paths)
        self._served = {path: entry for path, entry in self._served.items() if path in present}
        for path, (known, _) in list(self._damaged.items()):
            if path not in present or signature(path) != known:
                del self._damaged[path]
        return [path for path in paths if path not in self._damaged]

    @contextmanager
    def _leaving_out(self, path: Path) -> Iterator[None]:
        """Leave a file out, until it changes, if it is damaged."""
        found = signature(path)  # it may be restored while it is read
        try:
            yield
        except DamagedFileError as error:
            self._damaged[path] = found, str(error)
            self._served.pop(path, None)

    def _pending(self, windows: Sequence[Window]) -> dict[str, dict[Path, int]]:
        """Return the files with requests that each window closed, and the time of the first one of each."""
        pending: dict[str, dict[Path, int]] = {window.name: {} for window in windows}
        for path in self._paths:
            positions = {window.name: window.position(path.name) for window in windows}
            if not any(position is not None for position in positions.values()):
                self._served.pop(path, None)
                continue
            with self._leaving_out(path):
                following = self._next(path, positions)
                for window in windows:
                    if (time := following.get(window.name, LATEST)) <= window.until:
                        pending[window.name][path] = time
        return pending

    def _next(self, path: Path, positions: Mapping[str, int | None]) -> Mapping[str, int]:
        """Return the time of the first request of a file after the position of each window, if there is one.

        Raises:
            DamagedFileError: the file is damaged.
        """
        entry, file, times = self._served.get(path), None, None
        if entry is None:
            file = ServedFile.open(path)
            entry = self._served[path] = _Served(file.model != self._sources.model)
        if entry.is_other:
            return {}
        for name, position in positions.items():
            if position is None or entry.next.get(name, (None, 0))[0] == position:
                continue
            if times is None:
                times = (file or ServedFile.open(path)).requests()["t"].to_numpy()
                entry.earliest = int(times.min(initial=LATEST))
            entry.next[name] = position, int(times[times > position].min(initial=LATEST))
        return {name: entry.next[name][1] for name, position in positions.items() if position is not None}

    def _rows(
        self, connection: DuckDBPyConnection, window: Window, paths: list[Path], needed: dict[Path, Ids]
    ) -> Iterator[ClosedRows]:
        """Yield the rows of pending files; add the ids that were needed to ``needed``."""
        files = []
        for path in paths:
            with self._leaving_out(path):
                files.append(ServedFile.open(path))
        others = [file for file in files if file.version != self._version]
        versions = open_versions(others, self._sources.repository)
        versions = in_one_zone(versions | {self._version: self._current}, self._current.zone)
        labels = LabelColumns.of([version.schema for version in versions.values()])
        known = self._known_ids(window, paths[0], needed)
        attribution = Attribution(connection, window.length, labels, self._sources.shown, known)
        layout, remaining = RowLayout(files, versions, labels), {}
        for number, file in enumerate(files):
            with self._leaving_out(file.path):
                remaining[number] = attribution.add(number, file, window.position(file.path.name), window.until)
        attribution.resolve()
        for number, later in remaining.items():
            file, position, requests = files[number], str(window.until) if later else USED, attribution.rows(number)
            before = window.positions.get(file.path.name)
            if not len(requests):
                yield ClosedRows(window, file, None, before, position)
                continue
            candidates = None
            with self._leaving_out(file.path):
                candidates = ServedCandidates(file, requests)
            if candidates is not None:
                for rows, used in _chunks(layout.rows(file, candidates), candidates, attribution):
                    after = position if used is None else str(used)
                    yield ClosedRows(window, file, rows, before, after)
                    before = after

    def _known_ids(self, window: Window, first: Path, needed: dict[Path, Ids]) -> npt.NDArray[np.uint64]:
        """Return the hashes of the ids of requests that were used, and that a request in a file may repeat.

        Args:
            window: the window.
            first: the file.
            needed: gets the ids.
        """
        created = creation_time(first)
        start = "" if created is None else SERVED.start(created - REPEATED)
        hashes = [np.empty(0, np.uint64)]
        for path in self._paths:
            position, entry = window.position(path.name), self._served.get(path)
            unused = entry is not None and (entry.is_other or (position is not None and entry.earliest > position))
            if unused or path.name < start:
                continue
            with self._leaving_out(path):
                times, ids = needed[path] = needed.get(path) or self._ids.get(path) or self._read_ids(path)
                hashes.append(ids if position is None else ids[times <= position])
        return np.concatenate(hashes)[-MAX_IDS:]

    def _read_ids(self, path: Path) -> Ids:
        """Return the times and the id hashes of the requests in a file; none if it is of another model.

        Raises:
            DamagedFileError: the file is damaged.
        """
        file = ServedFile.open(path)
        if file.model != self._sources.model:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        requests = file.requests()
        return requests["t"].to_numpy(), hash_ids(requests["request_id"])


def _chunks(
    rows: pa.Table, candidates: ServedCandidates, attribution: Attribution
) -> Iterator[tuple[pa.Table, int | None]]:
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
