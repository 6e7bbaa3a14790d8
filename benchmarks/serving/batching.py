"""Measure and format what batches of many requests gain."""

from __future__ import annotations

from typing import Any

from pipelines.bench.harness import Harness
from pipelines.bench.report import caption, rate_and_latencies
from pipelines.bench.tables import section

FORM, CANDIDATES, CLIENTS = "ids", 10, 32


def measure_batching(harness: Harness) -> dict[str, Any]:
    """Measure the service with batches of many requests, and with one request per batch."""
    turns = []
    for _ in range(harness.sizes.turns):
        with harness.service() as server:
            batches = harness.closed_loop(server, FORM, CANDIDATES, CLIENTS)
        with harness.service(max_batch_rows=CANDIDATES) as server:
            no_batches = harness.closed_loop(server, FORM, CANDIDATES, CLIENTS)
        turns.append({"batches": batches, "no batches": no_batches})
    return {"candidates": CANDIDATES, "clients": CLIENTS, "turns": turns}


def format_batching(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the table of the part."""
    names = list(measured["turns"][0])
    rows = [(name, rate_and_latencies([turn[name] for turn in measured["turns"]])) for name in names]
    text = f"{caption(about)} {measured['candidates']} candidates, {measured['clients']} clients, closed loop."
    return section("Batches of many requests", text, ("", "requests/s, p50 / p99 ms"), rows)
