"""Time contenders in turns and compute ratios within a turn, so that other load on the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

MIN_CALLS = 3
"""Minimum number of timed calls per contender and turn, however long they take."""


def interleave(contenders: Mapping[str, Callable[[], object]], turns: int, seconds: float) -> dict[str, list[float]]:
    """Time contenders in turns.

    Args:
        contenders: name → function to time.
        turns: number of turns of each contender.
        seconds: duration of a turn; a turn has at least ``MIN_CALLS`` calls.

    Returns:
        Name → median seconds per call, one value per turn.
    """
    medians: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, call in contenders.items():
            call()  # Warms up the caches that the other contenders evicted.
            medians[name].append(statistics.median(_time_calls(call, seconds)))
    return medians


def _time_calls(call: Callable[[], object], seconds: float) -> list[float]:
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while len(durations) < MIN_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        durations.append(time.perf_counter() - start)
    return durations


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Divide two measurements turn by turn."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
