"""The queue between the event loop and the thread of a log."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Entry = TypeVar("Entry")


class Queued(NamedTuple, Generic[Entry]):
    """An entry with what it takes of the queue.

    Attributes:
        entry: the entry.
        units: its number of units.
        bytes: approximate memory that it holds.
        key: name of the API key whose share it takes, or None.
    """

    entry: Entry
    units: int
    bytes: int
    key: str | None


class BoundedQueue(Generic[Entry]):
    """A queue that is bounded in units and in bytes; one entry of any size may always wait.

    An entry counts until it is released, because it takes memory until then.

    Args:
        max_units: maximum number of units.
        max_bytes: maximum number of bytes.
        chunk_units: maximum number of units that ``take`` returns at once, unless one entry has more.
        chunk_bytes: maximum number of bytes that ``take`` returns at once, unless one entry has more.
        wait_for_chunk: whether ``wait`` waits for as much; otherwise it ends with the first entry.
        key_share: maximum share of the queue that the entries of one API key take, so that others find room in it.
    """

    def __init__(
        self,
        max_units: int,
        max_bytes: int,
        chunk_units: int,
        chunk_bytes: int,
        *,
        wait_for_chunk: bool,
        key_share: float = 1.0,
    ) -> None:
        self._max_units, self._max_bytes, self._key_share = max_units, max_bytes, key_share
        self._chunk_units, self._chunk_bytes, self._wait_for_chunk = chunk_units, chunk_bytes, wait_for_chunk
        self._entries: deque[Queued[Entry]] = deque()
        self._unreleased = 0
        self._units = self._bytes = 0
        self._key_units: Counter[str] = Counter()
        self._key_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()  # guards all counters
        self._wake = threading.Event()

    def __len__(self) -> int:
        """Return the number of entries that wait to be taken."""
        return len(self._entries)

    @property
    def units(self) -> int:
        """Number of units that are not released."""
        return self._units

    @property
    def bytes(self) -> int:
        """Number of bytes that are not released."""
        return self._bytes

    def has_room(self, units: int, size: int, key: str | None = None) -> bool:
        """Return whether an entry would be accepted now; may be called by any thread."""
        with self._lock:
            return self._has_room(Queued(None, units, size, key))

    def put(self, entry: Entry, units: int, size: int, key: str | None = None) -> bool:
        """Add an entry; return False if it does not fit."""
        queued = Queued(entry, units, size, key)
        with self._lock:
            if not self._has_room(queued):
                return False
            self._count(queued, 1)
            is_chunk = self._units >= self._chunk_units or self._bytes >= self._chunk_bytes
        self._entries.append(queued)
        if (is_chunk or not self._wait_for_chunk) and not self._wake.is_set():
            self._wake.set()
        return True

    def wait(self, seconds: float) -> None:
        """Wait for entries, see ``wait_for_chunk``, or until ``wake`` is called or the time has passed."""
        self._wake.wait(min(seconds, threading.TIMEOUT_MAX))
        self._wake.clear()

    def wake(self) -> None:
        """End the current or the next call of ``wait``."""
        self._wake.set()

    def take(self) -> list[Queued[Entry]]:
        """Remove the next entries, at most a chunk, or one that is larger; called by one thread only."""
        taken: list[Queued[Entry]] = []
        units = size = 0
        while self._entries:
            following = self._entries[0]
            units, size = units + following.units, size + following.bytes
            if taken and (units > self._chunk_units or size > self._chunk_bytes):
                break
            taken.append(self._entries.popleft())
        return taken

    def release(self, taken: Sequence[Queued[Entry]]) -> None:
        """Stop counting entries that were taken."""
        with self._lock:
            for queued in taken:
                self._count(queued, -1)

    def _has_room(self, queued: Queued[Any]) -> bool:
        if not self._unreleased:
            return True
        if self._units + queued.units > self._max_units or self._bytes + queued.bytes > self._max_bytes:
            return False
        return queued.key is None or (
            self._key_units[queued.key] + queued.units <= self._key_share * self._max_units
            and self._key_bytes[queued.key] + queued.bytes <= self._key_share * self._max_bytes
        )

    def _count(self, queued: Queued[Entry], sign: int) -> None:
        self._unreleased += sign
        self._units += sign * queued.units
        self._bytes += sign * queued.bytes
        if queued.key is not None:
            self._key_units[queued.key] += sign * queued.units
            self._key_bytes[queued.key] += sign * queued.bytes
