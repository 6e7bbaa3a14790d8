"""Amount of work that ``ranker bench`` measures."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """Amount of work of each measurement.

    Attributes:
        items: rows of the reference model's item table.
        users: rows of the reference model's user table.
        candidates: candidates per request, in one process and in closed loops.
        clients: numbers of clients of a closed loop.
        open_candidates: candidates per request in an open loop.
        shares: rates of open loops, as shares of the peak rate of a closed loop.
        turns: turns of each measurement.
        call_seconds: seconds of a contender's turn in one process.
        load_seconds: seconds of a closed loop, after ``warmup_seconds``.
        open_seconds: seconds of an open loop, after ``warmup_seconds``.
        overload_candidates: candidates per request under overload and attack.
        overload_seconds: seconds of the open loop that overloads the service.
        retrying_clients: numbers of clients that retry at once after a rejection.
        warmup_seconds: seconds of load before each measurement.
    """

    items: int
    users: int
    candidates: tuple[int, ...]
    clients: tuple[int, ...]
    open_candidates: tuple[int, ...]
    shares: tuple[float, ...]
    turns: int
    call_seconds: float
    load_seconds: float
    open_seconds: float
    overload_candidates: int
    overload_seconds: float
    retrying_clients: tuple[int, ...]
    warmup_seconds: float


FULL = Sizes(
    items=1_000_000,
    users=10_000,
    candidates=(1, 10, 100, 500, 1000, 4000),
    clients=(1, 8, 32, 64),
    open_candidates=(10, 100, 500),
    shares=(0.3, 0.5, 0.7, 0.9),
    turns=3,
    call_seconds=0.4,
    load_seconds=1.5,
    open_seconds=6.0,
    overload_candidates=300,
    overload_seconds=30.0,
    retrying_clients=(16, 600, 2500),
    warmup_seconds=0.3,
)
SHORT = replace(
    FULL,
    items=100_000,
    candidates=(10, 100, 500),
    clients=(1, 32),
    open_candidates=(100,),
    shares=(0.5, 0.9),
    turns=1,
    load_seconds=1.0,
    open_seconds=3.0,
    overload_seconds=10.0,
)
"""One turn of the usual sizes."""
QUICK = Sizes(
    items=2_000,
    users=100,
    candidates=(10, 100),
    clients=(4,),
    open_candidates=(100,),
    shares=(0.5,),
    turns=1,
    call_seconds=0.05,
    load_seconds=0.3,
    open_seconds=0.5,
    overload_candidates=300,
    overload_seconds=1.0,
    retrying_clients=(16, 2500),
    warmup_seconds=0.1,
)
