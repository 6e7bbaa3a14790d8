"""How things are measured: contenders take turns, and ratios are taken within a turn.

What else the machine does then meets all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

LEAST_CALLS = 3
"""Of each contender in each turn, however long they take."""


def in_turns(contenders: Mapping[str, Callable[[], object]], turns: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a call: of each contender the median of each turn.

    Args:
        contenders: name → what is called.
        turns: how often each has its turn.
        seconds: how long a turn is, at least LEAST_CALLS calls.
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, call in contenders.items():
            call()  # brings back into the caches what the others drove out
            found[name].append(statistics.median(_calls(call, seconds)))
    return found


def _calls(call: Callable[[], object], seconds: float) -> list[float]:
    spent: list[float] = []
    end = time.perf_counter() + seconds
    while len(spent) < LEAST_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return spent


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One figure over the other, turn by turn."""
    return [a / b for a, b in zip(above, below, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
