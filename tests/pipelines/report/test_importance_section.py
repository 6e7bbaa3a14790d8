"""Tests of ``pipelines.report.importance_section`` with generated results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.report.importance_section import MAX_BARS, MAX_ROWS, importance
from pipelines.report.page import write_report
from pipelines.report.run_data import RunData, read_run_data
from pipelines.runs.run import RunFolder
from tests.pipelines.report.conftest import importance_of, write_run


def run_data_with(tmp_path: Path, features: int) -> tuple[RunData, RunFolder]:
    run = write_run(tmp_path / "run")
    run.add_to_evaluation("importance", importance_of(run.load_config(), features))
    return read_run_data(run.path), run


def test_importance_of_a_run_without_it_names_the_command(finished_run: RunFolder) -> None:
    evaluation = finished_run.load_evaluation()
    del evaluation["importance"]
    finished_run.evaluation.write_text(json.dumps(evaluation))
    section = importance(read_run_data(finished_run.path))
    assert section.omitted is not None
    assert f"Run 'ranker evaluate {finished_run.path} --importance'" in section.omitted


def test_importance_without_an_evaluation_is_omitted(finished_run: RunFolder) -> None:
    finished_run.evaluation.unlink()
    assert importance(read_run_data(finished_run.path)).omitted is not None


def test_importance_draws_the_largest_of_each_task(tmp_path: Path) -> None:
    run_data, _ = run_data_with(tmp_path, features=40)
    content = importance(run_data).content
    assert [panel["metric"] for panel in content["panels"]] == ["drop in AUC", "drop in AUC", "rise in RMSE"]
    for panel in content["panels"]:
        values = [bar["value"] for bar in panel["bars"]]
        assert values == sorted(values, reverse=True)
        assert len(values) == MAX_BARS
    assert len(content["table"]) == MAX_ROWS
    assert content["more"] == 41 - MAX_ROWS


def test_importance_bars_lie_inside_the_plot_and_their_intervals(tmp_path: Path) -> None:
    run_data, _ = run_data_with(tmp_path, features=5)
    bars: list[dict[str, Any]] = importance(run_data).content["panels"][0]["bars"]
    for bar in bars:
        low, high = bar["interval"]
        assert 0 <= min(low, bar["left"]) <= max(high, bar["left"] + bar["width"]) <= 160
        end = bar["zero"] + (bar["width"] if bar["value"] > 0 else -bar["width"])
        assert low - 0.2 <= end <= high + 0.2
        assert bar["marked"] == (not low <= bar["zero"] <= high)


def test_report_shows_the_importance_with_its_intervals(tmp_path: Path) -> None:
    _, run = run_data_with(tmp_path, features=5)
    page = write_report(run.path).read_text()
    assert '<section id="importance"' in page
    assert "counter user_id" in page
    assert page.count('<table class="plain importance">') == 3
    # Of six entries, three are noise: their bars are pale, and their values have no mark.
    assert page.count('<rect class="unclear"') == 3 * 3
    assert page.count("*<small>") == 3 * 3


def test_report_of_undefined_importance_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = importance_of(run.load_config(), 3)
    for entry in result["entries"]:
        entry["tasks"] = {task: {"importance": None, "interval": None} for task in entry["tasks"]}
    run.add_to_evaluation("importance", json.loads(json.dumps(result)))
    assert "The sample has no rows to measure it on." in write_report(run.path).read_text()
