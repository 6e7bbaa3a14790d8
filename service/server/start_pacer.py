"""A batch's worth of requests at a time begins to be worked on; in between connections are looked after."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

LEAST_SHARE = 1 / 32
"""Of a turn, that a request takes which has hardly any rows: it costs something too."""


class StartPacer:
    """Starts at most a batch's worth of rows in each turn of the event loop; what is called first starts first.

    The event loop looks after its connections once a turn, and in each turn does all that is ready. If that were
    everything that a crowd has asked for at once, those whom it should refuse would wait for as long as all the others.
    If it were less than fills a batch, the batches of many small requests would be small.

    Args:
        rows: of a turn; one request with more takes a turn alone.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._waiting: deque[tuple[Callable[[], None], float]] = deque()
        self._taken = 0.0

    def submit(self, start: Callable[[], None], rows: int) -> None:
        """Calls ``start``: at once if there is room in this turn, else in its own; only called by the event loop."""
        share = max(rows / self._rows, LEAST_SHARE)
        if self._waiting or (self._taken and self._taken + share > 1.0):
            self._waiting.append((start, share))
            return
        self._start(start, share)

    def _start(self, start: Callable[[], None], share: float) -> None:
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._turn)
        self._taken += share
        start()

    def _turn(self) -> None:
        self._taken = 0.0
        while self._waiting and (not self._taken or self._taken + self._waiting[0][1] <= 1.0):
            self._start(*self._waiting.popleft())
