"""The engine that the service runs, alone: encoded requests in, scores out, one after the other.

    python -m pipelines.bench.bare BUNDLE CANDIDATES SECONDS THREADS

Prints requests a second: all of them by all of the time, as a load generator counts them. A median of their times would
leave out what else the machine does.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

from pipelines.bench.requests import DIFFERENT, Requests
from ranking.artifacts import bundle
from service.backends.select import select_backend

WARM = 0.2
"""Of the seconds, that come before."""


def measure(folder: Path, candidates: int, seconds: float, threads: int) -> float:
    """Requests a second.

    Args:
        folder: the bundle.
        candidates: of a request.
        seconds: that are measured.
        threads: of the engine.
    """
    ranker = bundle.read(folder)
    runtime, tasks = select_backend(ranker, "auto", threads), ranker.schema.task_names
    requests = Requests(ranker, folder)
    following = itertools.cycle([requests.halves(candidates) for _ in range(DIFFERENT)])
    begin = time.perf_counter() + WARM * seconds
    while time.perf_counter() < begin:
        runtime.scores(next(following), tasks)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() < start + seconds:
        runtime.scores(next(following), tasks)
        calls += 1
    return calls / (time.perf_counter() - start)


if __name__ == "__main__":
    path, candidates_, seconds_, threads_ = sys.argv[1:]
    print(json.dumps({"per_second": measure(Path(path), int(candidates_), float(seconds_), int(threads_))}))
