"""Who is scored next: the shortest first, but whoever has waited for its own length goes before all newcomers."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar


class Sliceable(Protocol):
    """What is scored: rows that can be cut."""

    def slice(self, start: int, stop: int) -> Self:
        """The rows from ``start`` to ``stop``."""
        ...


K = TypeVar("K", bound=Hashable)
W = TypeVar("W", bound=Sliceable)


@dataclass(eq=False, slots=True)
class QueueEntry(Generic[K, W]):
    """A request in the queue.

    Attributes:
        key: only entries of the same key share a batch.
        work: its rows.
        rows: how many, at least 1.
        deadline: ``time.monotonic()`` after which scoring must not start.
        reply: where its results or its error go.
        taken: rows that went into batches.
        results: of these rows, a batch after the other.
    """

    key: K
    work: W
    rows: int
    deadline: float
    reply: asyncio.Future[Any]
    taken: int = 0
    results: list[Any] = field(default_factory=list)
    _turn_ends: int = 0
    _order: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class BatchSlice(Generic[K, W]):
    """Rows of one entry, from ``start`` to ``stop``, that are scored in one batch."""

    entry: QueueEntry[K, W]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.stop - self.start

    @property
    def work(self) -> W:
        """The rows themselves."""
        whole = self.rows == self.entry.rows
        return self.entry.work if whole else self.entry.work.slice(self.start, self.stop)


class Scheduler(Generic[K, W]):
    """Batches of at most ``max_rows`` rows, from requests of all lengths.

    A turn of n rows that joins when c rows have been taken stands at c + n, and the lowest begins the next batch: a
    shorter turn passes a longer one, but none does that joins once n rows were taken since; equal lengths are first
    come, first served. A request of more than ``max_rows`` rows joins for its next turn only after the last, so that it
    holds nobody for much more than a batch and moves on under any load. (Equal shares of each batch would keep every
    request waiting until nearly all are done, and cut each into crumbs.)

    Not for several threads.

    Args:
        max_rows: of a batch and of a turn.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._lines: dict[K, list[QueueEntry[K, W]]] = {}
        self._taken = 0
        self._added = 0

    def __iter__(self) -> Iterator[QueueEntry[K, W]]:
        return (entry for line in self._lines.values() for entry in line)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, entry: QueueEntry[K, W]) -> None:
        """Lets the entry join."""
        self._added += 1
        entry._order = (0, self._added)
        self._join(entry)

    def remove(self, entry: QueueEntry[K, W]) -> None:
        """What is left of the entry will not be taken; nothing happens if nothing is left."""
        line = self._lines.get(entry.key, [])
        if entry in line:
            line.remove(entry)
            self._drop_if_empty(entry.key)

    def take(self, now: float) -> tuple[list[BatchSlice[K, W]], list[QueueEntry[K, W]]]:
        """The next batch, and the entries whose turn came after their deadline; both leave the queue.

        Returns:
            Parts of one key and of different entries, at most ``max_rows`` rows in all; none if the queue is empty or
            all of this key are too late. The entries that are too late.
        """
        starts: dict[QueueEntry[K, W], int] = {}
        late: list[QueueEntry[K, W]] = []
        if not self._lines:
            return [], late
        key, line = min(self._lines.items(), key=lambda pair: pair[1][0]._order)
        free = self._max_rows
        while line and free:
            entry = line.pop(0)
            if not entry.taken and entry.deadline < now:
                late.append(entry)
                continue
            starts.setdefault(entry, entry.taken)
            rows = min(free, entry._turn_ends - entry.taken)
            entry.taken += rows
            self._taken += rows
            free -= rows
            if entry.taken < entry._turn_ends:
                line.insert(0, entry)  # its turn goes on
            elif entry.taken < entry.rows:
                self._join(entry)
        self._drop_if_empty(key)
        return [BatchSlice(entry, start, entry.taken) for entry, start in starts.items()], late

    def _join(self, entry: QueueEntry[K, W]) -> None:
        turn = min(self._max_rows, entry.rows - entry.taken)
        entry._turn_ends = entry.taken + turn
        entry._order = (self._taken + turn, entry._order[1])
        insort(self._lines.setdefault(entry.key, []), entry, key=lambda other: other._order)

    def _drop_if_empty(self, key: K) -> None:
        if not self._lines[key]:
            del self._lines[key]
