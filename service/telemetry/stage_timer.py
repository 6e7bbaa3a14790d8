"""Time that each stage of a request takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, get_args

Stage = Literal["parse", "store", "look-up", "queue", "forward", "write"]

STAGES: tuple[Stage, ...] = get_args(Stage)


class StageTimer:
    """Times the consecutive stages of one request; may move between threads from stage to stage.

    Attributes:
        arrived: ``time.monotonic()`` when the request arrived and the first stage began.
    """

    def __init__(self) -> None:
        self.arrived = time.monotonic()
        self._ends: list[tuple[Stage, float]] = []

    def end(self, stage: Stage) -> None:
        """Attribute the time since the previous call, or since arrival, to a stage. Stages may recur."""
        self._ends.append((stage, time.monotonic()))

    def spans(self) -> Iterator[tuple[Stage, float, float]]:
        """Yield (stage, begin, end) in order; times are of ``time.monotonic()``."""
        begin = self.arrived
        for stage, end in self._ends:
            yield stage, begin, end
            begin = end

    def seconds(self) -> dict[Stage, float]:
        """Return the total seconds of each stage."""
        seconds: dict[Stage, float] = {}
        for stage, begin, end in self.spans():
            seconds[stage] = seconds.get(stage, 0.0) + end - begin
        return seconds

    def header(self) -> str:
        """Return the value of a Server-Timing header (W3C), in milliseconds."""
        return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in self.seconds().items())
