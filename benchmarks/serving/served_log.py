"""Measure and format the cost of the served log: the service with it and without it, in turns on the same cores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.serving.measured_server import metric_sums
from pipelines.bench.harness import Harness
from pipelines.bench.report import caption, medians, rate_and_latencies
from pipelines.bench.server_process import ServerProcess
from pipelines.bench.tables import section, spread
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
    before = metric_sums(server)
    load = harness.closed_loop(server, form, candidates, CLIENTS, harness.sizes.open_seconds / TURNS)
    if "ranker_served_requests_total" in before:
        time.sleep(INTERVAL_SECONDS)  # The last requests are written, and do not disturb the next load.
    change = {name: value - before.get(name, 0.0) for name, value in metric_sums(server).items()}
    requests = change["ranker_served_requests_total"]
    if requests:
        load["writer"] = change["ranker_served_cpu_seconds_total"] / requests * 1000 / load["cpu"]
        load["logged_bytes"] = change["ranker_served_bytes_total"] / requests
        load["dropped"] = change.get("ranker_served_dropped_total", 0.0)
        print_status(f"served log: its thread takes {load['writer']:.1%} of the CPU time")
    return load


def served_log_ratios(measured: Mapping[str, Any], form: str) -> list[float]:
    """Return requests/s with the served log divided by those without it, turn by turn."""
    return [turn[form]["on"]["per_second"] / turn[form]["off"]["per_second"] for turn in measured["turns"]]


def format_served_log(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the table of the part."""
    turns = measured["turns"]
    rows = []
    for form in turns[0]:
        loads = [turn[form]["on"] for turn in turns]
        rows.append(
            (
                form,
                rate_and_latencies([turn[form]["off"] for turn in turns]),
                rate_and_latencies(loads),
                spread(served_log_ratios(measured, form), ".2f"),
                spread([load["writer"] for load in loads], ".1%"),
                f"{medians(loads, 'logged_bytes')[0] / 1024:,.1f}",
                f"{sum(load['dropped'] for load in loads):,.0f}",
            )
        )
    return section(
        "Served log",
        f"{caption(about)} {measured['candidates']} candidates, {measured['clients']} clients, closed loop, a file "
        f"every {measured['interval']:g} s. Requests/s, then p50 / p99 in milliseconds. Writer: share of the "
        "log's thread in the CPU time of the service. KiB: size of the files per request.",
        ("form", "off", "on", "on / off", "writer", "KiB", "dropped"),
        rows,
    )
