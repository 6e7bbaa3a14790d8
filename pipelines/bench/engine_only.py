"""Measure the engine without HTTP: it scores encoded requests in one process, one after the other.

    python -m pipelines.bench.engine_only BUNDLE CANDIDATES SECONDS THREADS

Prints requests/s: the number of requests divided by the duration, as the load generator computes it. A median of
latencies would hide the effect of other load on the machine.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

from pipelines.bench.requests import DISTINCT_REQUESTS, Requests
from ranking.artifacts import bundle
from service.backends.select import select_backend

WARMUP_SHARE = 0.2
"""Duration of the warm-up as a share of the measured duration."""


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


def main(folder: str, candidates: str, seconds: str, threads: str) -> None:
    """Print the result as JSON."""
    print(json.dumps({"per_second": measure(Path(folder), int(candidates), float(seconds), int(threads))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
