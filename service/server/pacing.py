"""Pacing: starts of requests, rejections and large bodies, so that none of them occupies the event loop."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable

from service.protocol.problems import RETRY_AFTER_SECONDS

MIN_SHARE = 1 / 32
"""Minimum share of an event loop iteration that a request takes: small requests have a fixed cost, too."""
RESUMED_PER_SECOND = 1_000
"""Connections per second whose next request is read after a 429. Rejecting one takes about 50 µs of the event loop."""
EARLY_SECONDS = 0.9 * RETRY_AFTER_SECONDS
"""Seconds after a 429 in which a request is an early retry. Requests of clients that wait are read later."""
MAX_PAUSE_SECONDS = 0.8 * RETRY_AFTER_SECONDS
"""Maximum pause of a connection after a 429.

It ends before ``EARLY_SECONDS``, so that a request that has waited for its end is an early retry.
"""


class StartPacer:
    """Starts at most one batch of rows per iteration of the event loop, in first-in, first-out order.

    In each iteration the event loop polls the connections once and then runs all callbacks that are ready. If all
    pending requests started in one iteration, rejecting others would wait for all of them. Starting less than a batch
    per iteration would make the batches of many small requests small.

    Args:
        max_rows: maximum number of rows per iteration; a request with more takes a whole iteration.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._pending: deque[tuple[Callable[[], None], float]] = deque()
        self._used_share = 0.0

    def submit(self, start: Callable[[], None], rows: int) -> None:
        """Call ``start`` at once if this iteration has capacity, else in a later one.

        Not thread-safe: call it from the event loop.
        """
        share = max(rows / self._max_rows, MIN_SHARE)
        if self._pending or (self._used_share and self._used_share + share > 1.0):
            self._pending.append((start, share))
            return
        self._start(start, share)

    def _start(self, start: Callable[[], None], share: float) -> None:
        if not self._used_share:
            asyncio.get_running_loop().call_soon(self._run_iteration)
        self._used_share += share
        start()

    def _run_iteration(self) -> None:
        self._used_share = 0.0
        while self._pending and (not self._used_share or self._used_share + self._pending[0][1] <= 1.0):
            self._start(*self._pending.popleft())


class Pacer:
    """Spreads work over time, so that its rate is bounded.

    Args:
        rate: maximum amount of work per second.
        max_pause: maximum seconds of a pause; more work than fits into them exceeds the rate.
    """

    def __init__(self, rate: float, max_pause: float = math.inf) -> None:
        self._rate, self._max_pause = rate, max_pause
        self._last_resume = 0.0

    def next_pause(self, amount: float, now: float) -> float:
        """Return the seconds to pause after an amount of work at the time ``now``."""
        resume = max(self._last_resume, now) + amount / self._rate
        self._last_resume = min(resume, now + self._max_pause)
        return self._last_resume - now


class RejectionPacer:
    """Spreads the next requests of rejected connections over time, so that rejections leave capacity for ranking.

    Clients that retry at once would otherwise occupy the event loop with rejections. While few connections are
    rejected their pauses are short; with many, pauses approach ``MAX_PAUSE_SECONDS``.
    """

    def __init__(self) -> None:
        self._pacer = Pacer(RESUMED_PER_SECOND, MAX_PAUSE_SECONDS)

    def next_pause(self, now: float) -> float:
        """Return the seconds for which to read nothing from a connection after a 429 at the time ``now``."""
        pause = self._pacer.next_pause(1, now)
        return pause * random.uniform(0.6, 1.0)  # else rejected clients would return together
