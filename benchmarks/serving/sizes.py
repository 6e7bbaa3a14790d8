"""Amount of work of the serving benchmark."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from pipelines.bench import sizes
from pipelines.bench.harness import Harness


@dataclass(frozen=True)
class ServingSizes(sizes.Sizes):
    """Amount of work of each measurement; the loads over HTTP are those of ``ranker bench``.

    Attributes:
        items: rows of the reference model's item table.
        users: rows of the reference model's user table.
        call_seconds: seconds of a contender's turn in one process.
        overload_candidates: candidates per request under overload and attack.
        overload_seconds: seconds of the open loop that overloads the service.
        retrying_clients: numbers of clients that retry at once after a rejection.
    """

    items: int
    users: int
    call_seconds: float
    overload_candidates: int
    overload_seconds: float
    retrying_clients: tuple[int, ...]

    @classmethod
    def of(cls, harness: Harness) -> Self:
        """Return the sizes of a harness of this benchmark."""
        assert isinstance(harness.sizes, cls)
        return harness.sizes


FULL = ServingSizes(
    **asdict(sizes.FULL),
    items=1_000_000,
    users=10_000,
    call_seconds=0.4,
    overload_candidates=300,
    overload_seconds=30.0,
    retrying_clients=(16, 600, 2500),
)
QUICK = ServingSizes(
    candidates=(10, 100),
    clients=(4,),
    open_candidates=(100,),
    shares=(0.5,),
    turns=1,
    load_seconds=0.3,
    open_seconds=0.5,
    warmup_seconds=0.1,
    items=2_000,
    users=100,
    call_seconds=0.05,
    overload_candidates=300,
    overload_seconds=1.0,
    retrying_clients=(16, 2500),
)
