"""Compare the service with its engine alone, which scores encoded requests in one process, one after the other.

    python -m benchmarks.serving.engine_only BUNDLE CANDIDATES SECONDS THREADS

Prints requests/s: the number of requests divided by the duration, as the load generator computes it. A median of
latencies would hide the effect of other load on the machine.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipelines.bench.harness import Harness
from pipelines.bench.report import caption, medians, rate_and_latencies
from pipelines.bench.requests import DISTINCT_REQUESTS, Requests
from pipelines.bench.tables import section, spread
from ranking.artifacts import bundle
from service.backends.select import select_backend

FORM, CANDIDATES, CLIENTS = "ids", 100, 64
TURNS = 5
"""Turns of this comparison per turn of the other parts, because each is short."""
WARMUP_SHARE = 0.2
"""Duration of the warm-up as a share of the measured duration."""


def measure_engine_only(harness: Harness) -> dict[str, Any]:
    """Measure the service over HTTP, and the engine only before and after each loop, on the same cores."""
    candidates = min(CANDIDATES, harness.max_candidates)
    rates, loads = [_engine_rate(harness, candidates)], []
    with harness.service() as server:
        for _ in range(TURNS * harness.sizes.turns):
            loads.append(harness.closed_loop(server, FORM, candidates, CLIENTS))
            rates.append(_engine_rate(harness, candidates))
    turns = [
        {"service": load, "engine": (before + after) / 2}
        for load, (before, after) in zip(loads, pairwise(rates), strict=True)
    ]
    return {"candidates": candidates, "clients": CLIENTS, "turns": turns}


def _engine_rate(harness: Harness, candidates: int) -> float:
    """Return the requests/s of the engine only, measured for half the duration of a closed loop."""
    seconds = harness.sizes.load_seconds / 2
    module = "benchmarks.serving.engine_only"
    rate: float = harness.run_module(module, harness.folder, candidates, seconds, harness.threads)["per_second"]
    return rate


def measure(folder: Path, candidates: int, seconds: float, threads: int) -> float:
    """Return the requests/s of the backend that the service would select.

    Args:
        folder: the bundle.
        candidates: candidates per request.
        seconds: duration of the measurement.
        threads: threads of the backend.
    """
    ranker = bundle.read_bundle(folder)
    backend, tasks = select_backend(ranker, "auto", threads), ranker.schema.task_names
    requests = Requests(ranker, folder)
    batches = itertools.cycle([requests.encoded(candidates) for _ in range(DISTINCT_REQUESTS)])
    begin = time.perf_counter() + WARMUP_SHARE * seconds
    while time.perf_counter() < begin:
        backend.scores(next(batches), tasks)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() < start + seconds:
        backend.scores(next(batches), tasks)
        calls += 1
    return calls / (time.perf_counter() - start)


def http_to_engine_ratios(measured: Mapping[str, Any]) -> list[float]:
    """Return requests/s over HTTP divided by those of the engine only, turn by turn."""
    return [turn["service"]["per_second"] / turn["engine"] for turn in measured["turns"]]


def format_engine_only(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the table of the part."""
    turns = measured["turns"]
    (rate,) = medians(turns, "engine")
    return section(
        "HTTP and engine only",
        f"{caption(about)} Over HTTP: ids, {measured['candidates']} candidates, {measured['clients']} clients, closed "
        "loop; requests/s, then p50 / p99 in milliseconds. Engine only: requests/s in one process, which scores one "
        "encoded request after the other, measured before and after each loop.",
        ("over HTTP", "engine only", "HTTP / engine only"),
        [
            (
                rate_and_latencies([turn["service"] for turn in turns]),
                f"{rate:,.0f}",
                spread(http_to_engine_ratios(measured), ".2f"),
            )
        ],
    )


def main(folder: str, candidates: str, seconds: str, threads: str) -> None:
    """Print the result as JSON."""
    print(json.dumps({"per_second": measure(Path(folder), int(candidates), float(seconds), int(threads))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
