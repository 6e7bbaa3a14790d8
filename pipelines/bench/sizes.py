"""Amount of work that ``ranker bench`` measures."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """Amount of work of each measurement.

    Attributes:
        candidates: candidates per request in a closed loop.
        clients: numbers of clients of a closed loop.
        open_candidates: candidates per request in an open loop.
        shares: rates of open loops, as shares of the peak rate of a closed loop.
        turns: turns of each measurement.
        load_seconds: seconds of a closed loop, after ``warmup_seconds``.
        open_seconds: seconds of an open loop, after ``warmup_seconds``.
        warmup_seconds: seconds of load before each measurement.
    """

    candidates: tuple[int, ...]
    clients: tuple[int, ...]
    open_candidates: tuple[int, ...]
    shares: tuple[float, ...]
    turns: int
    load_seconds: float
    open_seconds: float
    warmup_seconds: float


FULL = Sizes(
    candidates=(1, 10, 100, 500, 1000, 4000),
    clients=(1, 8, 32, 64),
    open_candidates=(10, 100, 500),
    shares=(0.3, 0.5, 0.7, 0.9),
    turns=3,
    load_seconds=1.5,
    open_seconds=6.0,
    warmup_seconds=0.3,
)
SHORT = replace(
    FULL,
    candidates=(10, 100, 500),
    clients=(1, 32),
    open_candidates=(100,),
    shares=(0.5, 0.9),
    turns=1,
    load_seconds=1.0,
    open_seconds=3.0,
)
"""One turn of the usual sizes."""
