"""Measure the CPU time of a request by area of the service, with a sampling profiler."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.serving.stacks import AREAS, seconds_by_area
from pipelines.bench.harness import Harness
from pipelines.bench.server_process import CLOCK_TICKS, ServerProcess
from pipelines.bench.tables import section, spread
from pipelines.console import print_status
from ranking.errors import RankerError

PART = "budget"
FORM, CANDIDATES, CLIENTS = "ids", 100, 32
SAMPLES_PER_SECOND = 250
SECONDS_FACTOR = 4
"""Duration of a profile in units of ``load_seconds``."""
START_SECONDS = 1.0
"""Seconds that the profiler gets to attach before the load starts."""


def find_profiler() -> str | None:
    """Return the path of py-spy beside the running Python or on the PATH; None if it is not installed."""
    return shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def measure_budget(harness: Harness) -> dict[str, Any] | None:
    """Profile the service under load, and measure the CPU time of a request without the profiler.

    Returns:
        ``turns``: for each turn ``cpu``, the CPU microseconds of a request without the profiler, and ``areas``, their
        distribution over the areas; None if py-spy is not installed.

    Raises:
        RankerError: the profiler failed.
    """
    profiler = find_profiler()
    if profiler is None:
        print_status("omitting the budget: py-spy is not installed (requirements/bench.lock)")
        return None
    candidates = min(CANDIDATES, harness.max_candidates)
    turns = []
    with harness.service(harness.cores[:1]) as server:
        for _ in range(harness.sizes.turns):
            cpu = harness.closed_loop(server, FORM, candidates, CLIENTS)["cpu"] * 1000
            seconds = _profile(harness, server, profiler, candidates)
            total = sum(seconds.values())
            turns.append({"cpu": cpu, "areas": {area: cpu * value / total for area, value in seconds.items()}})
    return {"candidates": candidates, "clients": CLIENTS, "turns": turns}


def _profile(harness: Harness, server: ServerProcess, profiler: str, candidates: int) -> dict[str, float]:
    """Return the CPU seconds of the service under load by area."""
    seconds = harness.sizes.load_seconds * SECONDS_FACTOR
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "stacks"
        command = [profiler, "record", "--pid", str(server.pid), "--rate", str(SAMPLES_PER_SECOND), "--threads"]
        command += ["--nonblocking", "--full-filenames", "--format", "raw", "--output", str(output)]
        # The profiler runs beside the load generator, on the cores that the service does not use.
        cores = [core for core in harness.cores if core not in server.cores] or harness.cores
        process = subprocess.Popen(
            [*command, "--duration", str(int(START_SECONDS + seconds))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        before = _thread_seconds(server.pid)
        harness.closed_loop(server, FORM, candidates, CLIENTS, START_SECONDS + seconds)
        after = _thread_seconds(server.pid)
        _, errors = process.communicate()
        if process.returncode:
            raise RankerError(f"py-spy could not profile the service: {errors.strip()[-500:]}")
        text = output.read_text()
    return seconds_by_area(text, {thread: total - before.get(thread, 0.0) for thread, total in after.items()})


def _thread_seconds(pid: int) -> dict[int, float]:
    """Return the CPU seconds of each thread of a process."""
    seconds = {}
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        seconds[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return seconds


def format_budget(measured: dict[str, Any], _: dict[str, Any]) -> str:
    """Format the areas, the most expensive first."""
    turns = measured["turns"]
    times = {area: [turn["areas"][area] for turn in turns] for area in AREAS}
    shares = {area: [turn["areas"][area] / turn["cpu"] for turn in turns] for area in AREAS}
    order = sorted(AREAS, key=lambda area: statistics.median(times[area]), reverse=True)
    rows = [(area, spread(times[area], ",.0f"), spread(shares[area], ".0%")) for area in order]
    rows.append(("all", spread([turn["cpu"] for turn in turns], ",.0f"), "100%"))
    return section(
        "CPU time of a request",
        f"1 thread on 1 core, {measured['candidates']} candidates, ids, {measured['clients']} clients, closed loop. "
        "Microseconds of CPU time per request, by area: median (lowest – highest) of the turns. The total is measured "
        "without the profiler.",
        ("area", "µs", "share"),
        rows,
    )
