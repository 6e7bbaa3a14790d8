"""Shortest-job-first scheduling of candidates, with a starvation bound."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from service.engine.model import LoadedModel
from service.engine.request import FeatureRequest
from service.telemetry.stage_timer import StageTimer

if TYPE_CHECKING:
    from service.engine.scoring import RequestScores

BatchKey: TypeAlias = tuple[LoadedModel, tuple[str, ...]]
"""The model and the sorted tasks; requests that agree in both share batches."""


@dataclass(eq=False, slots=True)
class QueueEntry:
    """A request in the queue.

    Attributes:
        key: batch key; only entries with the same key share a batch.
        features: features to score, of at least one candidate.
        timer: stage timer of the request.
        deadline: ``time.monotonic()`` after which scoring must not start.
        reply: future that receives the results or an error.
        counted: whether the scoring metrics count the request.
        rows: number of candidates.
        start: first candidate in the batch that was taken last.
        stop: end of the candidates in it; the number of rows already assigned to batches.
        results: results of the scheduled rows, one per batch.
        quantum_stop: row at which the current quantum ends, see ``Scheduler``.
        priority: order in the queue, lowest first: virtual finish time, then arrival number.
    """

    key: BatchKey
    features: FeatureRequest
    timer: StageTimer
    deadline: float
    reply: asyncio.Future[Any]
    counted: bool = True
    rows: int = field(init=False)
    start: int = 0
    stop: int = 0
    results: list[RequestScores] = field(default_factory=list)
    quantum_stop: int = 0
    priority: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.rows = len(self.features)

    @property
    def batch_rows(self) -> int:
        """Number of candidates in the batch that was taken last."""
        return self.stop - self.start

    @property
    def batch_features(self) -> FeatureRequest:
        """The features of these candidates."""
        return self.features if self.batch_rows == self.rows else self.features.slice(self.start, self.stop)


class Scheduler:
    """Forms batches of at most ``max_rows`` rows from requests of all sizes. Not thread-safe.

    A quantum is the next part of a request, at most ``max_rows`` rows. A quantum of n rows that is queued after c rows
    were scheduled gets the priority c + n. The lowest priority begins the next batch; equal sizes are served in order
    of arrival. A shorter quantum therefore overtakes a longer one, but once n further rows are scheduled, new quanta no
    longer overtake a waiting quantum of n rows.

    The next quantum of a larger request is queued once the previous one has been scheduled. A large request therefore
    delays others by little more than one batch, and makes progress under any load. (Equal shares of each batch would
    keep every request waiting until nearly all are done, and split each into many small slices.)

    Args:
        max_rows: maximum number of rows per batch and per quantum.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._queues: dict[BatchKey, list[QueueEntry]] = {}
        self._scheduled_rows = 0
        self._arrivals = 0

    def __iter__(self) -> Iterator[QueueEntry]:
        return (entry for queue in self._queues.values() for entry in queue)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to the queue."""
        self._arrivals += 1
        entry.priority = (0, self._arrivals)
        self._enqueue(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Remove the remaining rows of an entry; do nothing if all rows are scheduled."""
        queue = self._queues.get(entry.key, [])
        if entry in queue:
            queue.remove(entry)
            self._drop_if_empty(entry.key)

    @property
    def only_entry(self) -> QueueEntry | None:
        """The entry in the queue if it is the only one."""
        entries = list(islice(self, 2))
        return entries[0] if len(entries) == 1 else None

    def take(self, now: float) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """Remove the next batch, and the expired entries that precede it, from the queue.

        Returns:
            The entries of the batch, which have one key; their ``batch_rows``, at most ``max_rows`` in total, are valid
            until the next call. The list is empty if the queue is empty or all entries of the key are expired. Second,
            the entries whose deadline passed before their first row was scheduled.
        """
        batch: dict[QueueEntry, None] = {}  # in order
        expired: list[QueueEntry] = []
        if not self._queues:
            return [], expired
        key, queue = min(self._queues.items(), key=lambda pair: pair[1][0].priority)
        free = self._max_rows
        while queue and free:
            entry = queue.pop(0)
            if not entry.stop and entry.deadline < now:
                expired.append(entry)
                continue
            if entry not in batch:
                batch[entry], entry.start = None, entry.stop
            rows = min(free, entry.quantum_stop - entry.stop)
            entry.stop += rows
            self._scheduled_rows += rows
            free -= rows
            if entry.stop < entry.quantum_stop:
                queue.insert(0, entry)  # the quantum continues in the next batch
            elif entry.stop < entry.rows:
                self._enqueue(entry)
        self._drop_if_empty(key)
        return list(batch), expired

    def _enqueue(self, entry: QueueEntry) -> None:
        """Queue the next quantum of an entry."""
        quantum = min(self._max_rows, entry.rows - entry.stop)
        entry.quantum_stop = entry.stop + quantum
        entry.priority = (self._scheduled_rows + quantum, entry.priority[1])
        insort(self._queues.setdefault(entry.key, []), entry, key=lambda other: other.priority)

    def _drop_if_empty(self, key: BatchKey) -> None:
        if not self._queues[key]:
            del self._queues[key]
