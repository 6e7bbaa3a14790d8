"""How much ``ranker bench`` measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        items, users: of the reference model's tables.
        candidates: of a request.
        clients: of a closed loop.
        open: candidates of a request in an open loop.
        shares: of the closed loop's throughput, which an open loop asks for.
        turns: of everything.
        call_seconds: of a contender's turn within a process.
        load_seconds: of a closed loop, after ``warm`` seconds.
        open_seconds: of an open loop, as much after those.
        crowd: candidates of a request when more is asked for than the service can do.
        crowd_seconds: of that open loop.
        tuning: batch sizes and time-outs that the rival is tried with.
    """

    items: int
    users: int
    candidates: tuple[int, ...]
    clients: tuple[int, ...]
    open: tuple[int, ...]
    shares: tuple[float, ...]
    turns: int
    call_seconds: float
    load_seconds: float
    open_seconds: float
    crowd: int
    crowd_seconds: float
    warm: float
    tuning: tuple[tuple[int, float], ...]


FULL = Sizes(
    items=1_000_000,
    users=10_000,
    candidates=(1, 10, 100, 500, 1000, 4000),
    clients=(1, 8, 32, 64),
    open=(10, 100, 500),
    shares=(0.3, 0.5, 0.7, 0.9),
    turns=3,
    call_seconds=0.4,
    load_seconds=1.5,
    open_seconds=6.0,
    crowd=300,
    crowd_seconds=30.0,
    warm=0.3,
    tuning=((8, 0.0), (32, 0.0), (32, 0.002), (64, 0.005)),
)
QUICK = Sizes(
    items=2_000,
    users=100,
    candidates=(10, 100),
    clients=(4,),
    open=(100,),
    shares=(0.5,),
    turns=1,
    call_seconds=0.05,
    load_seconds=0.3,
    open_seconds=0.5,
    crowd=300,
    crowd_seconds=1.0,
    warm=0.1,
    tuning=((8, 0.0),),
)
