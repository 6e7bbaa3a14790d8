"""Tests of the CPU budget of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving.budget import find_profiler, format_budget, measure_budget
from benchmarks.serving.sizes import QUICK
from benchmarks.serving.stacks import FORWARD
from pipelines.bench.harness import Harness
from pipelines.jobs.publish import publish
from tests.support.bench_results import measured_values


def test_format_budget_lists_the_most_expensive_area_first_and_the_total_last() -> None:
    rows = [line for line in format_budget(measured_values()["budget"], {}).splitlines() if line.startswith("| ")][2:]
    assert rows[0] == f"| {FORWARD} | 900 (900 – 900) | 60% (60% – 60%) |"
    assert rows[-1] == "| all | 1,500 (1,500 – 1,500) | 100% |"


@pytest.mark.nightly(short="test_format_budget_lists_the_most_expensive_area_first_and_the_total_last")
def test_measure_budget_distributes_the_cpu_time_of_a_request(reference: Path, tmp_path: Path) -> None:
    if find_profiler() is None:
        pytest.skip("py-spy is not installed (requirements/bench.lock)")
    publish(reference, tmp_path / "repository")
    measured = measure_budget(Harness(reference, tmp_path / "repository", QUICK, threads=1))
    assert measured is not None
    (turn,) = measured["turns"]
    assert sum(turn["areas"].values()) == pytest.approx(turn["cpu"])
    assert turn["areas"][FORWARD] > 0.1 * turn["cpu"]
