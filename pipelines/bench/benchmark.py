"""Measure the service with one bundle, part by part."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.bench.harness import Harness
from pipelines.bench.requests import FORMS
from pipelines.bench.sizes import Sizes
from pipelines.console import print_status
from pipelines.jobs.publish import publish
from ranking.temporary_folders import temporary_folder

PACKAGES = ("torch", "onnxruntime", "uvicorn", "uvloop", "httptools")
"""Packages whose versions the results contain."""
FORM, CLIENTS = "ids", 64
"""Form of requests of the open loops, and number of clients of the closed loop that finds their peak rate."""

Part = Callable[[Harness], dict[str, Any] | None]
"""Measures one part; returns None if something that it needs is not installed."""


def run_parts(folder: Path, sizes: Sizes, threads: int, parts: Mapping[str, Part]) -> Iterator[dict[str, Any]]:
    """Measure parts in their order and yield {part: results} after each.

    Args:
        folder: the bundle.
        sizes: amount of work.
        threads: cores of the measured process.
        parts: name → measurement.

    Raises:
        RankerError: the bundle cannot be loaded, or a measurement failed.
    """
    with temporary_folder("bench") as work:
        publish(folder, work / "repository")
        harness = Harness(folder, work / "repository", sizes, threads)
        about = {"threads": threads, "model": folder.name, "machine": describe_machine()}
        for part, measure in parts.items():
            print_status(f"measuring: {part}")
            result = measure(harness)
            if result is not None:
                yield {part: {**about, "measured": result}}


def measure_http(harness: Harness) -> dict[str, Any]:
    """Measure the service in closed loops, with every form of request."""
    sizes = harness.sizes
    turns: list[dict[str, Any]] = []
    for _ in range(sizes.turns):
        loads: dict[str, Any] = {}
        with harness.service() as server:
            for form in FORMS:
                for candidates in harness.candidates:
                    for clients in sizes.clients:
                        key = f"{form} {candidates} {clients}"
                        loads[key] = harness.closed_loop(server, form, candidates, clients)
        turns.append(loads)
    return {"forms": list(FORMS), "candidates": harness.candidates, "clients": sizes.clients, "turns": turns}


def measure_open_loop(harness: Harness) -> dict[str, Any]:
    """Measure the service in open loops, at shares of the peak rate of a closed loop."""
    sizes, turns = harness.sizes, []
    sizes_to_measure = [count for count in sizes.open_candidates if count <= harness.max_candidates]
    for turn in range(sizes.turns):
        loads: dict[str, Any] = {}
        with harness.service() as server:
            for candidates in sizes_to_measure:
                peak = harness.closed_loop(server, FORM, candidates, CLIENTS)["per_second"]
                loads[f"{candidates} most"] = peak
                for share in sizes.shares:
                    load = harness.open_loop(server, FORM, candidates, share * peak, sizes.open_seconds, seed=turn)
                    loads[f"{candidates} {share}"] = load
        turns.append(loads)
    return {"form": FORM, "candidates": sizes_to_measure, "shares": sizes.shares, "turns": turns}


PARTS: dict[str, Part] = {"http": measure_http, "open": measure_open_loop}
"""Part of ``ranker bench`` → its measurement."""


def describe_machine() -> dict[str, Any]:
    """Return the processor, the number of cores, the load average, and the versions of Python and of ``PACKAGES``."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: _package_version(name) for name in PACKAGES},
    }


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
