"""Metrics, memory and pauses of a measured server."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipelines.bench.load import HOST
from pipelines.bench.server_process import ServerProcess


def responses_by_status(server: ServerProcess) -> dict[str, float]:
    """Return the number of ranking requests by status, as the service counts them."""
    counts: dict[str, float] = defaultdict(float)
    for sample in _samples(server):
        if sample.name == "ranker_requests_total":
            counts[sample.labels["status"]] += sample.value
    return counts


def metric_sums(server: ServerProcess) -> dict[str, float]:
    """Return the sum of the samples of each metric over its labels."""
    sums: dict[str, float] = defaultdict(float)
    for sample in _samples(server):
        sums[sample.name] += sample.value
    return sums


def resident_bytes(server: ServerProcess) -> int:
    """Return the resident memory of all processes of the service."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.pids())
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def paused(server: ServerProcess) -> Iterator[None]:
    """Stop the processes within the block, so that a server that polls while it is idle uses no CPU time."""
    processes = server.pids()
    try:
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


def _samples(server: ServerProcess) -> list[Sample]:
    with urllib.request.urlopen(f"http://{HOST}:{server.port}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
    return [sample for family in families for sample in family.samples]
