"""How many cores and replicas a load takes, from what was measured; docs/scaling.md says how it is reckoned."""

from __future__ import annotations

import math
import statistics
from typing import Any

from pipelines.bench.aims import FROZEN
from pipelines.bench.engines import LOOK_UP
from pipelines.bench.tables import section

PART = "capacity"
"""Of docs/scaling.md."""

LOADS = (1_000, 10_000, 100_000)
"""Requests/s."""
CANDIDATES = (100, 500)

SHARE = 0.5
"""Of the most that a core reached, that is planned with: peaks and lost replicas find room in the rest."""
CORES = 2
"""Of a replica, as in the chart."""
QUEUE_ROWS = 1_000
"""Candidates in a replica that the chart's autoscaler holds."""
PRICE = 0.04
"""US dollars of a core with its memory for an hour: an assumption; put yours in its place."""
HOURS = 730
"""Of a month."""


def text(results: dict[str, Any]) -> str:
    """A table for each number of candidates: loads, with the cores, replicas and dollars that they take.

    Args:
        results: of ``ranker bench``; without its part ``http`` the engine alone counts, which no service reaches.

    Raises:
        LookupError: not even the engines were measured.
    """
    rates, how = _over_http(results["http"]) if "http" in results else _engine_alone(results["engines"])
    return "\n".join(_table(candidates, rates[candidates], how) for candidates in CANDIDATES if candidates in rates)


def replicas(load: float, rate: float) -> int:
    """Replicas of ``CORES`` for a load, one of which may be lost.

    Args:
        load: requests/s.
        rate: requests/s of a core that does nothing else.
    """
    return math.ceil(load / (rate * SHARE * CORES)) + 1


def _over_http(http: dict[str, Any]) -> tuple[dict[int, float], str]:
    """Candidates → requests/s of one core, and how that was measured."""
    measured, clients = http["measured"], max(http["measured"]["clients"])
    rates = {
        candidates: statistics.median(turn[f"ids {candidates} {clients}"]["per_second"] for turn in measured["turns"])
        for candidates in measured["candidates"]
    }
    return {candidates: rate / http["threads"] for candidates, rate in rates.items()}, f"HTTP, ids, {clients} clients"


def _engine_alone(engines: dict[str, Any]) -> tuple[dict[int, float], str]:
    """As ``_over_http``."""
    rates = {
        int(candidates): 1 / (statistics.median(spent[FROZEN]) + statistics.median(spent[LOOK_UP])) / engines["threads"]
        for candidates, spent in engines["measured"]["sizes"].items()
    }
    return rates, "the engine alone, an upper bound: HTTP was not measured"


def _table(candidates: int, rate: float, how: str) -> str:
    lines = []
    for load in LOADS:
        pods = replicas(load, rate)
        cost = pods * CORES * PRICE * HOURS
        lines.append((f"{load:,}", f"{load / (rate * SHARE):,.1f}", f"{pods:,}", f"{cost:,.0f}"))
    return section(
        f"{candidates} candidates",
        f"{rate:,.0f} requests/s of a core at most ({how}).",
        ("requests/s", f"cores at {SHARE:.0%}", f"replicas of {CORES} cores, one to lose", "US dollars a month"),
        lines,
        f"{QUEUE_ROWS:,} candidates in a replica: each stays {QUEUE_ROWS / (rate * candidates * SHARE * CORES):.2g} s.",
    )
