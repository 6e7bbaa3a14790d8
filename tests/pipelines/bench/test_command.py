"""Tests of the command ``ranker bench``."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench import benchmark, command, report
from pipelines.bench.sizes import FULL, SHORT
from pipelines.cli.main import main
from ranking.errors import RankerError
from tests.support.bench_results import serving_results

TINY = replace(
    SHORT, candidates=(10,), clients=(2,), shares=(0.5,), load_seconds=0.1, open_seconds=0.2, warmup_seconds=0.1
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the measurements with made-up results; the second part of a bundle named "broken" fails."""
    recorded: list[Any] = []

    def run_parts(folder: Path, sizes: Any, threads: int, parts: Any) -> Iterator[dict[str, Any]]:
        recorded.append((folder, sizes, threads))
        for number, part in enumerate(parts):
            if number and folder == Path("broken"):
                raise RankerError("a server did not start")
            yield {part: serving_results()[part]}

    monkeypatch.setattr(command, "run_parts", run_parts)
    return recorded


def test_bench_has_a_table_for_each_part() -> None:
    assert tuple(benchmark.PARTS) == tuple(report.TABLES)


def test_bench_measures_a_bundle_and_prints_tables(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "bundles/1"]) == 0
    assert capsys.readouterr().out.strip() == report.format_tables(serving_results()).strip()
    assert main(["bench", "bundles/1", "--full", "--threads", "2"]) == 0
    assert calls == [(Path("bundles/1"), SHORT, 1), (Path("bundles/1"), FULL, 2)]


@pytest.mark.usefixtures("calls")
def test_bench_json_keeps_parts_measured_before_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep" / "results.json"
    assert main(["bench", "broken", "--json", str(file)]) == 1
    assert "a server did not start" in capsys.readouterr().err
    assert json.loads(file.read_text()) == {"http": serving_results()["http"]}


@pytest.mark.usefixtures("calls")
def test_bench_json_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "bundles/1", "--json", str(tmp_path / "file" / "results.json")]) == 0
    assert main(["bench", "bundles/1", "--json", str(tmp_path / "file" / "results.json" / "x")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_bench_with_more_threads_than_cores_is_an_error(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(reference), "--threads", "100000"]) == 1
    assert "--threads 100000" in capsys.readouterr().err


def test_bench_of_a_folder_without_a_bundle_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path)]) == 1
    assert "is not a bundle" in capsys.readouterr().err


def test_bench_does_not_import_the_benchmarks_folder(tmp_path: Path) -> None:
    """An installed package contains no ``benchmarks/``."""
    modules = sorted(path.stem for path in Path(command.__file__).parent.glob("*.py"))
    imports = "\n".join(f"import pipelines.bench.{name}" for name in modules if name != "__init__")
    script = f"import sys\nsys.modules['benchmarks'] = None\n{imports}"
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)


@pytest.mark.usefixtures("programs")
def test_bench_measures_a_users_bundle(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the command: the service and the load generator run as processes of their own."""
    monkeypatch.setattr(command, "SHORT", TINY)
    file = tmp_path / "results.json"
    assert main(["bench", str(bundle), "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    assert set(results) == set(benchmark.PARTS)
    assert {result["model"] for result in results.values()} == {"bundle"}
    assert all(count_finite_numbers(result) for result in results.values())


def count_finite_numbers(results: Any) -> int:
    if isinstance(results, dict):
        return sum(map(count_finite_numbers, results.values()))
    if isinstance(results, list):
        return sum(map(count_finite_numbers, results))
    if isinstance(results, float):
        assert math.isfinite(results)
        return 1
    return 0
