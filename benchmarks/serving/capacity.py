"""Compute cores, replicas and cost for a load from the results; docs/scaling.md explains the formula."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.serving.engines import LOOK_UP
from benchmarks.serving.targets import FROZEN
from pipelines.bench.tables import section

PART = "capacity"
"""Name of the generated part of docs/scaling.md."""

LOADS = (1_000, 10_000, 100_000)
"""Requests/s of the rows of a table."""
CANDIDATES = (100, 500)
"""Candidates per request, one table each."""

UTILIZATION = 0.5
"""Planned share of a core's peak rate. The rest absorbs peaks and the loss of replicas."""
CORES = 1
"""Cores per replica, as in the chart."""
QUEUE_ROWS = 1_000
"""Target of the chart's autoscaler: candidates in a replica."""
CORE_HOUR_DOLLARS = 0.04
"""Price of a core with its memory, in US dollars per hour. This is an assumption."""
HOURS_PER_MONTH = 730


def format_capacity(results: dict[str, Any]) -> str:
    """Format a table per number of candidates with the cores, replicas and cost of each load.

    Args:
        results: results of the benchmark; without the part ``http``, the rate of the engine only is an upper bound.

    Raises:
        LookupError: the results contain neither ``http`` nor ``engines``.
    """
    rates, source = _http_rates(results["http"]) if "http" in results else _engine_rates(results["engines"])
    return "\n".join(_table(candidates, rates[candidates], source) for candidates in CANDIDATES if candidates in rates)


def replicas(load: float, rate: float) -> int:
    """Return the replicas of ``CORES`` cores that a load needs, including a spare one.

    Args:
        load: requests/s.
        rate: peak requests/s of a core.
    """
    return math.ceil(load / (rate * UTILIZATION * CORES)) + 1


def _http_rates(http: dict[str, Any]) -> tuple[dict[int, float], str]:
    """Return candidates → peak requests/s of a core, and how it was measured."""
    measured, clients = http["measured"], max(http["measured"]["clients"])
    rates = {
        candidates: statistics.median(turn[f"ids {candidates} {clients}"]["per_second"] for turn in measured["turns"])
        for candidates in measured["candidates"]
    }
    return {candidates: rate / http["threads"] for candidates, rate in rates.items()}, f"HTTP, ids, {clients} clients"


def _engine_rates(engines: dict[str, Any]) -> tuple[dict[int, float], str]:
    """Return the same as ``_http_rates``, computed from the times in one process."""
    rates = {}
    for candidates, seconds in engines["measured"]["sizes"].items():
        total = statistics.median(seconds[FROZEN]) + statistics.median(seconds[LOOK_UP])
        rates[int(candidates)] = 1 / total / engines["threads"]
    return rates, "engine only, an upper bound: HTTP was not measured"


def _table(candidates: int, rate: float, source: str) -> str:
    rows = []
    for load in LOADS:
        count = replicas(load, rate)
        cost = count * CORES * CORE_HOUR_DOLLARS * HOURS_PER_MONTH
        rows.append((f"{load:,}", f"{load / (rate * UTILIZATION):,.1f}", f"{count:,}", f"{cost:,.0f}"))
    seconds = QUEUE_ROWS / (rate * candidates * UTILIZATION * CORES)
    header = (
        "requests/s",
        f"cores at {UTILIZATION:.0%}",
        f"replicas of {CORES} core, including a spare",
        "US dollars per month",
    )
    return section(
        f"{candidates} candidates",
        f"Peak rate of a core: {rate:,.0f} requests/s ({source}).",
        header,
        rows,
        f"With {QUEUE_ROWS:,} candidates in a replica, each spends {seconds:.2g} s there.",
    )
