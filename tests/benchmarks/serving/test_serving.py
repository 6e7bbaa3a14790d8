"""Tests of ``python -m benchmarks.serving``: the report and the documents that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import __main__ as serving
from benchmarks.serving import report
from benchmarks.serving.__main__ import PARTS, main
from benchmarks.serving.budget import find_profiler
from benchmarks.serving.peers.catalog import LITSERVE
from benchmarks.serving.sizes import FULL, QUICK
from pipelines.bench import benchmark
from pipelines.bench.requests import FORMS
from tests.support.bench_results import serving_results

ROOT = Path(__file__).parents[3]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the measurements with made-up results."""
    recorded: list[Any] = []

    def run_parts(folder: Path, sizes: Any, threads: int, parts: Any) -> Iterator[dict[str, Any]]:
        recorded.append((folder.name, sizes, threads, list(parts)))
        yield from ({part: serving_results()[part]} for part in parts)

    monkeypatch.setattr(benchmark, "run_parts", run_parts)
    monkeypatch.setattr(serving, "write_reference", lambda *_: None)
    return recorded


def test_format_report_starts_with_the_targets_and_contains_the_peers() -> None:
    text = report.format_report(serving_results())
    assert text.startswith("### Targets\n")
    assert text.count("\n### ") == len(PARTS) + 5  # "http" and "overload" have two tables, "peers" one per case.
    assert "| frozen, onnxruntime | 9 | 9 |" in text
    assert "| 80, 2 / 4 | 100 | 0.80 (0.80 – 0.80) |" in text
    assert "| no batches | 60, 2 / 4 (6 failed) |" in text
    assert "| 5× that rate | 90 | 5 | 10 | 80% | 12 | 0 |" in text
    assert "| 32 clients, afterwards | 95 | 2 | 4 | 0% | – | 0 |" in text
    assert "| ids | 100, 2 / 4 | 96, 2 / 4 | 0.96 (0.96 – 0.96) | 2.5% (2.5% – 2.5%) | 4.0 | 0 |" in text
    assert "| slow | 100, 2 / 4 | 90, 2 / 6 | 1.50 (1.50 – 1.50) |" in text
    assert "### Other ways to serve the bundle: 10 candidates, 1 client\n" in text
    assert "| ranker | 300, 2 / 3 |  |  |  |  | default |" in text
    ratios = "3.00 (3.00 – 3.00) | 1.00 (1.00 – 1.00) | 0.50 (0.50 – 0.50) | 1.00 (1.00 – 1.00)"
    assert f"| {LITSERVE} (0.2.19) | 100, 2 / 6 | {ratios} | size 8, wait 0.0, zeromq True |" in text


def test_main_writes_results_tables_and_plot(calls: list[Any], tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text("# Mine\n")
    assert main(["--docs", str(tmp_path)]) == 0
    assert calls == [("reference", FULL, 1, list(PARTS))]
    assert json.loads((tmp_path / "results" / "serving.json").read_text()) == serving_results()
    assert (tmp_path / "results" / "serving.svg").read_text().startswith("<svg ")
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.startswith("# Mine\n")
    assert report.format_report(serving_results()) in text
    assert "(results/serving.svg)" in text
    assert "candidates" in (tmp_path / "scaling.md").read_text()


def test_published_tables_match_the_published_results() -> None:
    results = json.loads((ROOT / "docs/results/serving.json").read_text())
    assert set(results) == set(PARTS)
    assert report.format_report(results) in (ROOT / "docs/benchmarks.md").read_text()


@pytest.mark.nightly(short="test_main_writes_results_tables_and_plot")
def test_main_measures_its_parts(tmp_path: Path) -> None:
    """Protects the program: it measures in other processes and writes the results and the document."""
    parts = set(PARTS) - {"overload", "attacks"}  # tests/service/test_overload.py measures the others
    assert main(["--quick", "--docs", str(tmp_path), "--only", *parts]) == 0
    results = json.loads((tmp_path / "results" / "serving.json").read_text())
    measured = parts if find_profiler() else parts - {"budget"}
    assert set(results) == measured
    engines = results["engines"]["measured"]["sizes"]["100"]
    assert {"dense, eager", "frozen, torch", "frozen, onnxruntime", "roofline"} <= set(engines)
    loads = [load for turn in results["http"]["measured"]["turns"] for load in turn.values() if "failed" in load]
    assert len(loads) == len(FORMS) * len(QUICK.candidates) * len(QUICK.clients)
    assert all(load["failed"] == {} for load in loads)
    # The targets; "http" and "peers" have two tables.
    tables = len(measured) + 3
    assert (tmp_path / "benchmarks.md").read_text().count("\n### ") == tables
