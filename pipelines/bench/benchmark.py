"""Measure scoring and serving of a bundle, part by part."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipelines.bench.harness import Harness
from pipelines.bench.overload import measure_attacks, measure_overload
from pipelines.bench.requests import FORMS
from pipelines.bench.served_log import measure_served_log
from pipelines.bench.sizes import Sizes
from pipelines.console import print_status
from pipelines.jobs.publish import publish
from ranking.temporary_folders import temporary_folder

REFERENCE = "reference"
"""Name of the reference model in the results."""
PACKAGES = ("torch", "onnxruntime", "uvicorn", "uvloop", "httptools")
"""Packages whose versions the results contain."""
FORM, CLIENTS = "ids", 64
"""Form of requests and number of clients of the parts ``bare`` and ``open``."""
BATCHING_CANDIDATES, BATCHING_CLIENTS = 10, 32
ENGINE_CANDIDATES = 100
"""Candidates per request when HTTP is compared with the engine only."""
ENGINE_TURNS = 5
"""Turns of that comparison per turn of the other parts, because each is short."""

Part = Callable[[Harness], dict[str, Any] | None]
"""Measures one part; returns None if something that it needs is not installed."""


def run_benchmark(
    folder: Path | None,
    sizes: Sizes,
    threads: int,
    only: Sequence[str],
    parts: Mapping[str, Part] | None = None,
    packages: Sequence[str] = PACKAGES,
) -> Iterator[dict[str, Any]]:
    """Measure the requested parts and yield {part: results} after each.

    Args:
        folder: the bundle; None for the reference model.
        sizes: amount of work.
        threads: cores of the measured process.
        only: names of the parts to measure.
        parts: name → measurement; default: ``PARTS``.
        packages: packages whose versions the results contain.

    Raises:
        RankerError: the bundle cannot be loaded, or a measurement failed.
    """
    parts = PARTS if parts is None else parts
    with temporary_folder("bench") as work:
        measured = folder or _write_reference(work / "bundle", sizes)
        publish(measured, work / "repository")
        harness = Harness(measured, work / "repository", sizes, threads)
        model = REFERENCE if folder is None else folder.name
        about = {"threads": threads, "model": model, "machine": describe_machine(packages)}
        for part in only:
            print_status(f"measuring: {part}")
            result = parts[part](harness)
            if result is not None:
                yield {part: {**about, "measured": result}}


def measure_engines(harness: Harness, module: str = "pipelines.bench.engines") -> dict[str, Any]:
    """Time contenders in one process; ``module`` is the script that runs them."""
    sizes = harness.sizes
    candidates = ",".join(map(str, harness.candidates))
    return harness.run_module(module, harness.folder, candidates, sizes.turns, sizes.call_seconds, harness.threads)


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


def measure_engine_only(harness: Harness) -> dict[str, Any]:
    """Measure the service over HTTP, and the engine only before and after each loop, on the same cores."""
    candidates = min(ENGINE_CANDIDATES, harness.max_candidates)
    rates, loads = [_engine_rate(harness, candidates)], []
    with harness.service() as server:
        for _ in range(ENGINE_TURNS * harness.sizes.turns):
            loads.append(harness.closed_loop(server, FORM, candidates, CLIENTS))
            rates.append(_engine_rate(harness, candidates))
    turns = [
        {"service": load, "engine": (before + after) / 2}
        for load, (before, after) in zip(loads, pairwise(rates), strict=True)
    ]
    return {"candidates": candidates, "clients": CLIENTS, "turns": turns}


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


def measure_batching(harness: Harness) -> dict[str, Any]:
    """Measure the service with batches of many requests, and with one request per batch."""
    turns = []
    for _ in range(harness.sizes.turns):
        with harness.service() as server:
            batches = harness.closed_loop(server, FORM, BATCHING_CANDIDATES, BATCHING_CLIENTS)
        with harness.service(max_batch_rows=BATCHING_CANDIDATES) as server:
            no_batches = harness.closed_loop(server, FORM, BATCHING_CANDIDATES, BATCHING_CLIENTS)
        turns.append({"batches": batches, "no batches": no_batches})
    return {"candidates": BATCHING_CANDIDATES, "clients": BATCHING_CLIENTS, "turns": turns}


PARTS: dict[str, Part] = {
    "engines": measure_engines,
    "http": measure_http,
    "bare": measure_engine_only,
    "open": measure_open_loop,
    "batching": measure_batching,
    "overload": measure_overload,
    "attacks": measure_attacks,
    "served": measure_served_log,
}
"""Part of ``ranker bench`` → its measurement."""


def describe_machine(packages: Sequence[str]) -> dict[str, Any]:
    """Return the processor, the number of cores, the load average, and the versions of Python and of packages."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: _package_version(name) for name in packages},
    }


def _engine_rate(harness: Harness, candidates: int) -> float:
    """Return the requests/s of the engine only, measured for half the duration of a closed loop."""
    seconds = harness.sizes.load_seconds / 2
    module = "pipelines.bench.engine_only"
    rate: float = harness.run_module(module, harness.folder, candidates, seconds, harness.threads)["per_second"]
    return rate


def _write_reference(folder: Path, sizes: Sizes) -> Path:
    from pipelines.bench.reference import write_reference  # Needs the packages of training.

    write_reference(folder, sizes.items, sizes.users)
    return folder


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
