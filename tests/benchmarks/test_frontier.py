"""Tests of the frontier benchmark: configurations, paired comparison and plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import frontier
from pipelines.config.config import load_config

ROOT = Path(__file__).parents[2]


def result(seed: int, click: float, rmse: float, flops: int) -> dict[str, Any]:
    tasks = {"click": click, "watch_time": rmse}
    return {"seed": seed, "frozen_flops": flops, "dense_flops": 100, "experts_used": 2, "tasks": tasks}


def test_study_has_valid_configurations_and_one_reference(logs: Path) -> None:
    study = frontier.kuairand_study(Path("raw"))
    assert [model.label for model in study.models].count(frontier.REFERENCE) == 1
    assert len({model.label for model in study.models}) == len(study.models)
    for model in study.models:
        load_config(logs / "ranker.toml", model.settings)


def test_compare_pairs_runs_of_the_same_seed(tmp_path: Path) -> None:
    models = (frontier.Model(frontier.REFERENCE, "a"), frontier.Model("small", "b"))
    pairs = (("small", frontier.REFERENCE),)
    study = frontier.Study("made up", (), models, ("click",), ("watch_time",), equal_cost_pairs=pairs)
    runs = {
        frontier.REFERENCE: [result(0, 0.70, 1.2, 90), result(1, 0.60, 1.3, 70)],
        "small": [result(0, 0.71, 1.1, 30), result(1, 0.63, 1.2, 30)],
    }
    comparison = frontier.compare(study, runs)
    reference, small = comparison["models"]
    assert reference["auc_difference"] == reference["auc_interval"] == 0
    assert reference["frozen_of_reference_dense"] == pytest.approx(0.8)
    assert small["frozen_of_reference_dense"] == pytest.approx(0.3)
    assert small["auc_difference"] == pytest.approx(0.02)
    assert small["auc_interval"] == pytest.approx(12.7062047 * 0.01)  # The differences are 0.01 and 0.03.
    assert small["rmse_difference"] == pytest.approx(-0.1)
    assert "| small | 30% | 2 | 0.6700 | +0.0200 ± 0.1271 | -0.1000 ± 0.0000 |" in frontier.table(comparison)
    assert "| small | no budget | +0.0200 ± 0.1271 | -0.1000 ± 0.0000 |" in frontier.table(comparison)
    frontier.plot({"made up": comparison}, tmp_path / "plot.svg")
    assert "small" in (tmp_path / "plot.svg").read_text()


def test_published_results_have_the_current_configurations() -> None:
    published = json.loads((ROOT / "docs" / "results" / "frontier.json").read_text())
    expected = {s.name: {m.label: list(m.settings) for m in s.models} for s in [frontier.kuairand_study(Path("raw"))]}
    settings = {name: {row["label"]: row["settings"] for row in study["models"]} for name, study in published.items()}
    assert settings == expected
    assert all(len(row["runs"]) >= 6 for study in published.values() for row in study["models"])
