"""Compare the service with LitServe in turns, on the same cores and with the same requests."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelines.bench.harness import Harness
from pipelines.bench.server_process import ServerProcess
from pipelines.console import print_status

PART = "litserve"
FORM, CLIENTS = "ids", 32
CASES = ((10, 1), (100, 1), (10, 2), (100, 2))
"""(candidates per request, cores)."""

Tuning = Sequence[tuple[int, float]]
"""(batch size, batch timeout in seconds) to try for LitServe, each with both of its queues."""
FULL: Tuning = ((8, 0.0), (32, 0.0), (32, 0.002), (64, 0.005))
QUICK: Tuning = ((8, 0.0),)


def compare(harness: Harness, tuning: Tuning) -> dict[str, Any] | None:
    """Tune LitServe for each case, then measure LitServe and the service in turns.

    Returns:
        The results; None if LitServe is not installed.
    """
    if importlib.util.find_spec("litserve") is None:
        print_status("omitting LitServe, which is not installed (requirements/bench.lock)")
        return None
    cases = [(candidates, cores) for candidates, cores in CASES if cores <= len(harness.cores)]
    measured = [_measure_case(harness, tuning, candidates, harness.cores[:cores]) for candidates, cores in cases]
    return {"clients": CLIENTS, "form": FORM, "cases": measured}


def _measure_case(harness: Harness, tuning: Tuning, candidates: int, cores: Sequence[int]) -> dict[str, Any]:
    from benchmarks.serving.litserve_app import LitServeSettings  # Needs LitServe.

    defaults = LitServeSettings(str(harness.folder), workers=len(cores), threads=1)
    trials = []
    for (size, timeout), fast_queue in itertools.product(tuning, (False, True)):
        settings = replace(defaults, max_batch_size=size, batch_timeout=timeout, fast_queue=fast_queue)
        rate = _measure_server(harness, settings.server(cores), candidates)["per_second"]
        trials.append((rate, settings))
        print_status(
            f"LitServe, batches of {size}, {timeout * 1000:g} ms, fast_queue={fast_queue}: {rate:.1f} responses/s"
        )
    best = max(trials, key=lambda trial: trial[0])[1]
    turns = []
    for _ in range(harness.sizes.turns):
        litserve = _measure_server(harness, best.server(cores), candidates)
        ranker = _measure_server(harness, harness.service(cores), candidates)
        turns.append({"litserve": litserve, "ranker": ranker})
    tuned = {
        "max_batch_size": best.max_batch_size,
        "batch_timeout": best.batch_timeout,
        "fast_queue": best.fast_queue,
        "workers": best.workers,
    }
    return {"candidates": candidates, "cores": len(cores), "tuned": tuned, "turns": turns}


def _measure_server(harness: Harness, server: ServerProcess, candidates: int) -> dict[str, Any]:
    with server:
        return harness.closed_loop(server, FORM, candidates, CLIENTS)
