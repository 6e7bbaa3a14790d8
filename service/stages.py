"""How long each stage of a request took, for whoever wants to know where its time goes."""

from __future__ import annotations

import time
from typing import Literal

Stage = Literal["parse", "store", "look-up", "queue", "forward", "write"]


class Stages:
    """The stages of one request, one after the other; it may pass from thread to thread between them.

    Attributes:
        arrived: ``time.monotonic()`` at which the request arrived and the first stage began.
    """

    def __init__(self) -> None:
        self.arrived = self._since = time.monotonic()
        self._seconds: dict[Stage, float] = {}

    def end(self, stage: Stage) -> None:
        """The time since the end of the stage before, or since the arrival, was this stage's; stages may recur."""
        now = time.monotonic()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def header(self) -> str:
        """The value of a Server-Timing header (W3C), in milliseconds."""
        return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in self._seconds.items())
