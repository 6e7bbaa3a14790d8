"""Tests of the benchmark of selection against rivals of equal cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import selection

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.nightly(short="tests/pipelines/datasets/test_conflict.py::test_generated_configuration_trains")
def test_quick_form_tunes_and_measures_contenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes about 10 s: protects the benchmark from logs to its documents, with one model and one per group."""
    chosen = [c for c in selection.CONTENDERS if c.name in (selection.OURS, "shared bottom, towers 8")]
    monkeypatch.setattr(selection, "CONTENDERS", chosen)
    monkeypatch.setattr(selection, "DEGREES", (1.0,))
    selection.main(["--work", str(tmp_path / "work"), "--out", str(tmp_path), "--seeds", "2", "--jobs", "1", "--quick"])
    results = json.loads((tmp_path / "selection.json").read_text())
    assert set(results["degrees"]["1.0"]) == {contender.name for contender in chosen}
    for values in results["degrees"]["1.0"].values():
        assert len(values["runs"]) == 2
        assert all(0.4 < run["auc"] < 0.7 for run in values["runs"])
    assert (tmp_path / "selection.md").read_text() == selection.format_document(results)
    assert "shared bottom" in (tmp_path / "selection.svg").read_text()


@pytest.mark.nightly(short="tests/pipelines/datasets/test_conflict.py::test_generated_configuration_trains")
def test_separate_bottoms_are_one_model_per_group_of_tasks(tmp_path: Path) -> None:
    """Takes about 5 s: protects the only contender that consists of several models. Its result is kept."""
    (tmp_path / "runs").mkdir()
    job = (tmp_path, selection.SEPARATE, 1.0, 1, selection.QUICK_ROWS, (1e-2, 1e-1), True)
    result = selection.run(job)
    one, tower = 2 * (32 * 68 + 68), 2 * (68 * 8 + 8)
    assert result["flops"] == 8 * (2 * 32 * 68 + 3 * (2 * 68 + tower))
    assert result["one_task"] == one + tower
    assert 0.4 < result["auc"] < 0.7
    (file,) = (tmp_path / "runs").iterdir()
    written = file.stat().st_mtime_ns
    assert selection.run(job) == result
    assert file.stat().st_mtime_ns == written


def made_up(**aucs: list[float]) -> dict[str, Any]:
    names = {"ours": selection.OURS, "shared": "shared bottom, towers 8", "other": "Top-k, sum, k = 4"}
    runs = {
        names[key]: {
            "rates": [0.01, 0.1],
            "runs": [{"loss": 1.0, "auc": auc, "flops": 64_000, "one_task": 5_000} for auc in values],
        }
        for key, values in aucs.items()
    }
    return {"command": "x", "rows": 100_000, "seeds": 2, "degrees": {"1.0": runs}}


def test_document_lists_the_best_contender_first_with_paired_differences() -> None:
    results = made_up(ours=[0.82, 0.84], shared=[0.80, 0.81], other=[0.83, 0.85])
    rows = [line for line in selection.format_document(results).splitlines() if line.startswith("| ")][
        2:
    ]  # header, dashes
    assert [row.split(" | ")[0] for row in rows] == [
        "| Top-k, sum, k = 4",
        f"| {selection.OURS}",
        "| shared bottom, towers 8",
    ]
    assert rows[0].split(" | ")[4:6] == ["0.0350 ± 0.0635", "0.0100 ± 0.0000"]
    assert rows[1].split(" | ")[1:5] == ["64,000", "5,000", "0.8300 ± 0.0100", "0.0250 ± 0.0635"]
    assert rows[2].split(" | ")[4] == "–"


def test_published_document_is_that_of_the_published_results_at_equal_cost() -> None:
    results = json.loads((RESULTS / "selection.json").read_text())
    assert (RESULTS / "selection.md").read_text() == selection.format_document(results)
    assert (RESULTS / "selection.svg").exists()
    assert [float(degree) for degree in results["degrees"]] == list(selection.DEGREES)
    for contenders in results["degrees"].values():
        assert list(contenders) == [contender.name for contender in selection.CONTENDERS]
        for name, values in contenders.items():
            assert len(values["runs"]) == results["seeds"] >= 5
            chosen = next(contender for contender in selection.CONTENDERS if contender.name == name)
            least = 52_000 if None not in chosen.rates and chosen.rates != selection.SIMILAR_RATES else 0
            assert all(least < run["flops"] < 66_000 for run in values["runs"]), name
