"""``ranker bench``: what it writes where, what stays, and that all of it runs."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench import command, report
from pipelines.bench.requests import FORMS
from pipelines.bench.sizes import FULL, QUICK
from pipelines.cli.arguments import BENCH_PARTS
from pipelines.cli.main import main
from ranking.errors import RankerError
from tests.pipelines.bench.test_report import results


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be measured; the results are made up, and a bundle named "broken" fails at the second part."""
    calls: list[Any] = []

    def bench(folder: Any, sizes: Any, threads: int, only: Any) -> Iterator[dict[str, Any]]:
        calls.append((folder, sizes, threads, list(only)))
        for number, part in enumerate(only):
            if number and folder == Path("broken"):
                raise RankerError("a server did not start")
            yield {part: results()[part]}

    monkeypatch.setattr(command, "bench", bench)
    return calls


def test_tables_go_to_stdout(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert capsys.readouterr().out.strip() == report.text(results()).strip()
    assert asked == [(None, FULL, 1, list(BENCH_PARTS))]


def test_parts_that_are_not_measured_stay(asked: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    assert main(["bench", "--json", str(file), "--only", "engines", "open"]) == 0
    assert main(["bench", "--json", str(file), "--only", "batching", "--threads", "2", "--quick"]) == 0
    assert set(json.loads(file.read_text())) == {"engines", "open", "batching"}
    assert asked[1] == (None, QUICK, 2, ["batching"])


def test_parts_that_were_measured_before_one_that_fails_stay(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "benchmarks.md").write_text("# Mine\n")
    assert main(["bench", "broken", "--docs", str(tmp_path), "--only", "engines", "open"]) == 1
    assert "a server did not start" in capsys.readouterr().err
    found = json.loads((tmp_path / "results" / "serving.json").read_text())
    assert set(found) == {"engines"}
    assert report.text(found) in (tmp_path / "benchmarks.md").read_text()
    assert asked


def test_documents_get_tables_results_and_a_picture(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text("# Mine\n")
    assert main(["bench", "--docs", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "results" / "serving.json").read_text()) == results()
    assert (tmp_path / "results" / "serving.svg").read_text().startswith("<svg ")
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.startswith("# Mine\n")
    assert report.text(results()) in text
    assert "(results/serving.svg)" in text
    assert asked


def test_items_are_of_the_reference_model(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--items", "7"]) == 0
    assert asked[0][1].items == 7
    assert main(["bench", "somewhere", "--items", "7"]) == 2
    assert "--items is of the reference model" in capsys.readouterr().err


def test_more_threads_than_cores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--threads", "100000", "--only", "engines"]) == 1
    assert "--threads 100000" in capsys.readouterr().err


def test_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path), "--quick"]) == 1
    assert "is not a bundle" in capsys.readouterr().err


@pytest.mark.slow
def test_everything_is_measured(tmp_path: Path) -> None:
    parts = set(BENCH_PARTS) - {"overload", "attacks"}  # tests/service/test_overload.py measures those
    assert main(["bench", "--quick", "--docs", str(tmp_path), "--only", *parts]) == 0
    found = json.loads((tmp_path / "results" / "serving.json").read_text())
    there = parts - (set() if importlib.util.find_spec("litserve") else {"rival"})
    assert set(found) == there
    assert _numbers(found) > 50
    loads = [load for turn in found["http"]["measured"]["turns"] for load in turn.values() if "failed" in load]
    assert len(loads) == len(FORMS) * len(QUICK.candidates) * len(QUICK.clients)
    assert all(load["failed"] == {} for load in loads)
    engines = found["engines"]["measured"]["sizes"]["100"]
    assert {"dense, eager", "frozen, torch", "frozen, onnxruntime", "roofline"} <= set(engines)
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.count("\n### ") == 1 + len(there) + 1  # aims; the stages have a table of their own


@pytest.mark.slow
def test_a_users_own_bundle_is_measured(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert main(["bench", str(bundle), "--quick", "--only", "engines", "batching", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["engines"]["model"] == "bundle"
    assert "### Aims" not in report.text(found)


def _numbers(found: Any) -> int:
    """How many numbers there are, all of them finite."""
    if isinstance(found, dict):
        return sum(map(_numbers, found.values()))
    if isinstance(found, list):
        return sum(map(_numbers, found))
    if isinstance(found, float):
        assert math.isfinite(found)
        return 1
    return 0
