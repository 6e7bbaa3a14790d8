"""Tests of the command ``ranker bench``."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench import benchmark, command, report
from pipelines.bench.sizes import FULL, QUICK, SHORT
from pipelines.cli.main import main
from pipelines.cli.service_commands import BENCH_PARTS
from ranking.errors import RankerError
from tests.support.bench_results import serving_results


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the measurements with made-up results; the second part of a bundle named "broken" fails."""
    recorded: list[Any] = []

    def run_benchmark(folder: Any, sizes: Any, threads: int, only: Any) -> Iterator[dict[str, Any]]:
        recorded.append((folder, sizes, threads, list(only)))
        for number, part in enumerate(only):
            if number and folder == Path("broken"):
                raise RankerError("a server did not start")
            yield {part: serving_results()[part]}

    monkeypatch.setattr(command, "run_benchmark", run_benchmark)
    return recorded


def test_bench_parts_of_the_command_line_are_those_that_can_be_measured() -> None:
    assert tuple(benchmark.PARTS) == tuple(report.TABLES) == BENCH_PARTS


def test_bench_without_arguments_measures_the_reference_model_and_prints_tables(
    calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench"]) == 0
    results = {part: serving_results()[part] for part in ("engines", "http", "open")}
    assert capsys.readouterr().out.strip() == report.format_tables(results).strip()
    assert main(["bench", "--full"]) == 0
    assert capsys.readouterr().out.strip() == report.format_tables(serving_results()).strip()
    assert calls == [(None, SHORT, 1, list(results)), (None, FULL, 1, list(BENCH_PARTS))]


def test_bench_json_keeps_parts_that_are_not_measured(calls: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    assert main(["bench", "--json", str(file), "--only", "engines", "open"]) == 0
    assert main(["bench", "--json", str(file), "--only", "batching", "--threads", "2", "--quick"]) == 0
    assert set(json.loads(file.read_text())) == {"engines", "open", "batching"}
    assert calls[1] == (None, QUICK, 2, ["batching"])


@pytest.mark.usefixtures("calls")
def test_bench_json_keeps_parts_measured_before_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    assert main(["bench", "broken", "--json", str(file), "--only", "engines", "open"]) == 1
    assert "a server did not start" in capsys.readouterr().err
    assert json.loads(file.read_text()) == {"engines": serving_results()["engines"]}


@pytest.mark.usefixtures("calls")
def test_bench_json_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", str(tmp_path / "file" / "results.json"), "--only", "engines"]) == 0
    assert main(["bench", "--json", str(tmp_path / "file" / "results.json" / "x"), "--only", "engines"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_bench_items_applies_to_the_reference_model_only(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--items", "7"]) == 0
    assert calls[0][1].items == 7
    assert main(["bench", "somewhere", "--items", "7"]) == 2
    assert "--items sets the size of the reference model" in capsys.readouterr().err


def test_bench_with_more_threads_than_cores_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--threads", "100000", "--only", "engines"]) == 1
    assert "--threads 100000" in capsys.readouterr().err


def test_bench_of_a_folder_without_a_bundle_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--quick"]) == 1
    assert "is not a bundle" in capsys.readouterr().err


def test_bench_does_not_import_the_benchmarks_folder(tmp_path: Path) -> None:
    """An installed package contains no ``benchmarks/``."""
    modules = sorted(path.stem for path in Path(command.__file__).parent.glob("*.py"))
    imports = "\n".join(f"import pipelines.bench.{name}" for name in modules if name != "__init__")
    script = f"import sys\nsys.modules['benchmarks'] = None\n{imports}"
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(["engines"], id="one part"),
        # tests/service/test_overload.py measures the others.
        pytest.param([*set(BENCH_PARTS) - {"overload", "attacks"}], id="all", marks=pytest.mark.nightly),
    ],
)
def test_bench_measures_a_users_bundle(bundle: Path, tmp_path: Path, parts: list[str]) -> None:
    file = tmp_path / "results.json"
    assert main(["bench", str(bundle), "--quick", "--only", *parts, "--json", str(file)]) == 0
    results = json.loads(file.read_text())
    assert set(results) == set(parts)
    assert {result["model"] for result in results.values()} == {"bundle"}
    assert all(count_finite_numbers(result) for result in results.values())
    assert {"frozen, torch", "frozen, onnxruntime", "one task, onnxruntime"} <= set(
        results["engines"]["measured"]["sizes"]["10"]
    )
    assert report.format_tables(results).count("### ") == len(parts) + ("http" in parts)  # "http" has two tables.


def count_finite_numbers(results: Any) -> int:
    if isinstance(results, dict):
        return sum(map(count_finite_numbers, results.values()))
    if isinstance(results, list):
        return sum(map(count_finite_numbers, results))
    if isinstance(results, float):
        assert math.isfinite(results)
        return 1
    return 0
