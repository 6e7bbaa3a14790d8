"""Budget of the bytes of request bodies that a process holds, and the return of freed memory to the system."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from prometheus_client import Gauge

from ranking.free_memory import return_free_memory
from service.engine.errors import QueueFullError
from service.server.pacing import Pacer

LEASE = "body_lease"
"""Key of a request's lease in the state of its ASGI scope."""
GAUGE_STEP_BITS = 16
"""The gauge shows multiples of 2^16 bytes, so that small requests do not pay for it."""
PARSED_SHARE = 8
"""Bytes of bodies that a process holds, divided by those that are parsed at a time."""
SMALL_BYTES = 16 * 1024
"""Size of a body up to which it is parsed at once, even if larger ones wait."""
PRESSURE_SHARE = 1 / 2
"""Share of the budget above which large bodies are read at a bounded rate."""
PACED_BYTES_PER_SECOND = 32 * 1024 * 1024
"""Maximum rate at which a process reads large bodies then. It bounds the time for receiving and copying them."""
TRIM_BYTES = 32 * 1024 * 1024
"""Minimum peak of the held bytes after which freed memory is returned explicitly.

The allocator keeps freed memory for later use. It would keep most of a peak forever, because a few small objects that
still live at the end of its heap prevent it from shrinking.
"""
TRIM_SHARE = 1 / 4
"""Share of the peak to which the held bytes must fall before memory is returned."""
TRIM_SECONDS = 2.0
"""Seconds between the fall of the held bytes and the return of memory, in which the objects of requests are freed."""


class BodyBudget:
    """Bounds the bytes of all request bodies of a process, from their arrival to the end of their requests.

    A body may take at most half of what other bodies leave free, so that small bodies find room beside any number of
    large ones. If a body does not fit, an older one that still arrives is rejected in its favor: the oldest that is at
    least of average size. Slow clients therefore cannot keep the budget from others. Complete bodies are not rejected.

    Not thread-safe: all calls come from the event loop.

    Args:
        max_bytes: maximum number of bytes.
        gauge: shows the held bytes.

    Attributes:
        held: number of bytes that are held.
        parsed: bounds the bytes of the bodies that are parsed at a time.
    """

    def __init__(self, max_bytes: int, gauge: Gauge) -> None:
        self._max_bytes, self._gauge = max_bytes, gauge
        self._arriving: OrderedDict[BodyLease, None] = OrderedDict()
        self._arriving_bytes = 0
        self._peak = self._step = 0
        self._pacer = Pacer(PACED_BYTES_PER_SECOND)
        self._trim_timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.parsed = ParsedBodies(max_bytes // PARSED_SHARE)

    def can_hold(self, size: int) -> bool:
        """Whether a body of this size fits beside the complete bodies."""
        return 2 * size <= self._max_bytes - (self.held - self._arriving_bytes)

    def make_room(self, lease: BodyLease, size: int) -> bool:
        """Reject older arriving bodies until a body fits with this size; return False if that is not enough.

        Args:
            lease: the body that grows.
            size: its size afterwards in bytes.
        """
        while 2 * size > self._max_bytes - (self.held - lease.size):
            displaced = self._oldest_large_body(lease)
            if displaced is None:
                return False
            displaced.reject()
        return True

    def change(self, size: int, *, arriving: bool) -> None:
        """Change the number of held bytes; ``arriving``: they belong to a body that still arrives."""
        self.held += size
        if arriving:
            self._arriving_bytes += size
        self._peak = max(self._peak, self.held)
        if self.held >> GAUGE_STEP_BITS != self._step:
            self._step = self.held >> GAUGE_STEP_BITS
            self._gauge.set(self._step << GAUGE_STEP_BITS)
        if self._peak >= TRIM_BYTES and self.held < TRIM_SHARE * self._peak and self._trim_timer is None:
            self._trim_timer = asyncio.get_running_loop().call_later(TRIM_SECONDS, self._return_memory)

    def next_pause(self, size: int, now: float) -> float:
        """Return the seconds to wait before more of a body is read, of which ``size`` bytes arrived at time ``now``.

        Clients that never complete their bodies, or send them again and again, would otherwise occupy the event loop
        with copying bytes.
        """
        if self.held < PRESSURE_SHARE * self._max_bytes:
            return 0.0
        return self._pacer.next_pause(size, now)

    def start_arrival(self, lease: BodyLease) -> None:
        """Record that only a part of a body has arrived, so that it may be rejected in favor of others."""
        self._arriving[lease] = None
        self._arriving_bytes += lease.size

    def end_arrival(self, lease: BodyLease) -> None:
        """Record that a body is complete or no longer needed."""
        del self._arriving[lease]
        self._arriving_bytes -= lease.size

    def _oldest_large_body(self, lease: BodyLease) -> BodyLease | None:
        """Return the oldest body that is older than ``lease`` and at least of the average size of the others."""
        is_arriving = lease in self._arriving
        count, total = len(self._arriving) - is_arriving, self._arriving_bytes - is_arriving * lease.size
        if not total:
            return None
        for other in self._arriving:
            if other is lease:
                return None
            if other.size * count >= total:
                return other
        return None

    def _return_memory(self) -> None:
        """Return free memory to the system in another thread."""
        self._trim_timer, self._peak = None, self.held
        asyncio.get_running_loop().run_in_executor(None, return_free_memory)


class BodyLease:
    """The body of one request in the budget: its bytes until the request ends, and its parsed form until it is scored.

    Args:
        budget: budget of the process.

    Attributes:
        size: number of bytes that the request holds.
        is_complete: whether the whole body has arrived.
        rejected: whether the budget has rejected the body.
        on_reject: called when the budget rejects the body.
    """

    __slots__ = ("_arriving", "_budget", "_parsed_size", "_released", "is_complete", "on_reject", "rejected", "size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.on_reject: Callable[[], None] | None = None
        self._arriving = self._released = False
        self.size = self._parsed_size = 0
        self.is_complete = self.rejected = False

    def add(self, size: int) -> bool:
        """Count bytes that have arrived; return False if they must be discarded because the body is rejected."""
        if self._released:
            return not self.rejected
        if not self._budget.make_room(self, self.size + size):
            self.reject()
            return False
        self.size += size
        self._budget.change(size, arriving=self._arriving)
        return True

    def wait_for_more(self) -> None:
        """Record that the rest of the body is outstanding."""
        if not (self._arriving or self._released):
            self._arriving = True
            self._budget.start_arrival(self)

    def next_pause(self, size: int, now: float) -> float:
        """Return the seconds to wait before more of the body is read, see ``BodyBudget.next_pause``."""
        return self._budget.next_pause(size, now)

    def complete(self) -> None:
        """Record that the whole body has arrived."""
        self.is_complete = True
        self._end_arrival()

    def reject(self) -> None:
        """Give the bytes back, because the body does not fit into the budget or others need its room."""
        self.rejected, on_reject = True, self.on_reject
        self.release()
        if on_reject is not None:
            on_reject()

    def release(self) -> None:
        """Give the bytes back for good."""
        if not self._released:
            self._released = True
            self.on_reject = None  # it refers to the request, which refers to this object
            self._end_arrival()
            self._budget.change(-self.size, arriving=False)
            self.size = 0

    async def start_parsing(self, size: int) -> None:
        """Wait until the body may be parsed; the caller must call ``end_parsing``.

        Args:
            size: size of its content in bytes, see ``service.http.decode.json_size``.
        """
        await self._budget.parsed.acquire(size)
        self._parsed_size = size

    def grow_parsed(self, size: int) -> None:
        """Count the parsed form with its decompressed size, if that is larger.

        Raises:
            QueueFullError: the bytes do not fit beside those of other requests.
        """
        if size > self._parsed_size:
            self._budget.parsed.require_room(self._parsed_size, size - self._parsed_size)
            self._budget.parsed.change(size - self._parsed_size)
            self._parsed_size = size

    def end_parsing(self) -> None:
        """Stop counting the parsed form."""
        self._budget.parsed.change(-self._parsed_size)
        self._parsed_size = 0

    def _end_arrival(self) -> None:
        if self._arriving:
            self._arriving = False
            self._budget.end_arrival(self)


class ParsedBodies:
    """Bounds the bytes of bodies that are parsed at a time; further requests wait, in order of arrival.

    The parsed form of JSON takes up to 13 times its size (see ``service.http.decode.json_size``). It lives until the
    request is scored, so without a bound the parsed forms of all waiting requests would exist at once. A body of any
    size is parsed if no other is. Not thread-safe: all calls come from the event loop.

    Args:
        max_bytes: maximum number of bytes of parsed bodies.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def acquire(self, size: int) -> None:
        """Wait until a body of this size may be parsed, and count it; ``change`` stops counting it."""
        if size > SMALL_BYTES and (self._waiting or not self._fits(size)):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, size))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.change(-size)
                raise
        else:
            self._held += size

    def require_room(self, size: int, more: int) -> None:
        """Raise ``QueueFullError`` if a parsed body of ``size`` bytes must not grow by ``more`` bytes."""
        if more > 0 and self._held > size and self._held + more > self._max_bytes:
            raise QueueFullError

    def change(self, size: int) -> None:
        """Change the number of bytes that are held, and parse waiting bodies that fit now."""
        self._held += size
        while self._waiting and (self._waiting[0][0].cancelled() or self._fits(self._waiting[0][1])):
            turn, waiting_size = self._waiting.popleft()
            if not turn.cancelled():
                self._held += waiting_size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._max_bytes
