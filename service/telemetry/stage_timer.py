"""How long each stage of a request took, for whoever wants to know where its time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, get_args

Stage = Literal["parse", "store", "look-up", "queue", "forward", "write"]

STAGES: tuple[Stage, ...] = get_args(Stage)


class StageTimer:
    """The stages of one request, one after the other; it may pass from thread to thread between them.

    Attributes:
        arrived: ``time.monotonic()`` at which the request arrived and the first stage began.
    """

    def __init__(self) -> None:
        self.arrived = time.monotonic()
        self._ends: list[tuple[Stage, float]] = []

    def end(self, stage: Stage) -> None:
        """The time since the end of the stage before, or since the arrival, was this stage's; stages may recur."""
        self._ends.append((stage, time.monotonic()))

    def spans(self) -> Iterator[tuple[Stage, float, float]]:
        """Each stage with the times of its begin and end, as they followed each other."""
        begin = self.arrived
        for stage, end in self._ends:
            yield stage, begin, end
            begin = end

    def seconds(self) -> dict[Stage, float]:
        """Stage → how long it took in all."""
        seconds: dict[Stage, float] = {}
        for stage, begin, end in self.spans():
            seconds[stage] = seconds.get(stage, 0.0) + end - begin
        return seconds

    def header(self) -> str:
        """The value of a Server-Timing header (W3C), in milliseconds."""
        return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in self.seconds().items())
