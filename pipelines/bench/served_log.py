"""Measure the cost of the served log: the service with it and without it, in turns on the same cores."""

from __future__ import annotations

import time
from typing import Any

from pipelines.bench.harness import Harness
from pipelines.bench.server_process import ServerProcess
from pipelines.console import print_status
from ranking.temporary_folders import temporary_folder

CANDIDATES, CLIENTS = 100, 32
FORMS = ("ids", "columns")
"""Forms of the requests: features from the bundle's tables, and features in the request."""
TURNS = 3
"""Turns of this measurement per turn of others, each as much shorter, because the pace of a machine changes."""
INTERVAL_SECONDS = 5.0
"""``served_log_seconds`` of the service, half of the default."""


def measure_served_log(harness: Harness) -> dict[str, Any]:
    """Measure closed loops with the served log off and on.

    Returns:
        ``turns``: form → ``off`` and ``on``, summaries of the loads; of ``on`` also ``writer``, the share of the log's
        thread in the CPU time of the service, ``logged_bytes`` per request, and ``dropped`` requests.
    """
    candidates = min(CANDIDATES, harness.max_candidates)
    turns: list[dict[str, dict[str, Any]]] = []
    with temporary_folder("bench") as folder:
        log: dict[str, Any] = {"served_log": folder, "served_log_seconds": INTERVAL_SECONDS}
        with harness.service() as off, harness.service(**log) as on:
            servers = {"off": off, "on": on}
            for turn in range(harness.sizes.turns * TURNS):
                measured: dict[str, dict[str, Any]] = {form: {} for form in FORMS}
                for form in FORMS:
                    for name in sorted(servers, reverse=bool(turn % 2)):  # Neither is always first.
                        measured[form][name] = _load(harness, servers[name], form, candidates)
                turns.append(measured)
    return {"candidates": candidates, "clients": CLIENTS, "interval": INTERVAL_SECONDS, "turns": turns}


def _load(harness: Harness, server: ServerProcess, form: str, candidates: int) -> dict[str, Any]:
    """Run a closed loop and add the cost of the log to its summary."""
    before = server.samples()
    load = harness.closed_loop(server, form, candidates, CLIENTS, harness.sizes.open_seconds / TURNS)
    if "ranker_served_requests_total" in before:
        time.sleep(INTERVAL_SECONDS)  # The last requests are written, and do not disturb the next load.
    change = {name: value - before.get(name, 0.0) for name, value in server.samples().items()}
    requests = change["ranker_served_requests_total"]
    if requests:
        load["writer"] = change["ranker_served_cpu_seconds_total"] / requests * 1000 / load["cpu"]
        load["logged_bytes"] = change["ranker_served_bytes_total"] / requests
        load["dropped"] = change.get("ranker_served_dropped_total", 0.0)
        print_status(f"served log: its thread takes {load['writer']:.1%} of the CPU time")
    return load
