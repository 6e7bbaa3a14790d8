"""One request at a time begins to be worked on, so that connections are looked after between any two of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turnstile:
    """Starts at most one thing in each turn of the event loop; what is called first starts first.

    The event loop looks after its connections once a turn, and in each turn does all that is ready. If that were
    everything that a crowd has asked for at once, those whom it should refuse would wait for as long as all the others.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._turned = False

    def enter(self, start: Callable[[], None]) -> None:
        """Calls ``start``: at once if it is the first of this turn, else in its own; only called by the event loop."""
        if self._turned:
            self._waiting.append(start)
            return
        self._turned = True
        asyncio.get_running_loop().call_soon(self._turn)
        start()

    def _turn(self) -> None:
        self._turned = False
        if self._waiting:
            self.enter(self._waiting.popleft())
