"""The frontier's script: its configurations exist, its numbers are paired by seed, and it draws."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelines.config import config as configs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def frontier() -> ModuleType:
    spec = importlib.util.spec_from_file_location("frontier", ROOT / "benchmarks" / "frontier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["frontier"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def result(seed: int, click: float, rmse: float, flops: int) -> dict[str, Any]:
    tasks = {"click": click, "watch_time": rmse}
    return {"seed": seed, "frozen_flops": flops, "dense_flops": 100, "experts_used": 2, "tasks": tasks}


def test_every_configuration_is_one_that_ranker_train_takes(frontier: ModuleType, logs: Path) -> None:
    for study in frontier.studies(Path("raw")):
        assert [model.label for model in study.models].count(frontier.REFERENCE) == 1
        assert len({model.label for model in study.models}) == len(study.models)
        for model in study.models:
            configs.load(logs / "ranker.toml", [*study.settings, *model.settings])


def test_models_are_compared_with_the_reference_of_the_same_seed(frontier: ModuleType, tmp_path: Path) -> None:
    models = (frontier.Model(frontier.REFERENCE, "a"), frontier.Model("small", "b"))
    rivals = (("small", frontier.REFERENCE),)
    study = frontier.Study("made up", (), models, ("click",), ("watch_time",), rivals=rivals)
    runs = {
        frontier.REFERENCE: [result(0, 0.70, 1.2, 90), result(1, 0.60, 1.3, 70)],
        "small": [result(0, 0.71, 1.1, 30), result(1, 0.63, 1.2, 30)],
    }
    found = frontier.compare(study, runs)
    reference, small = found["models"]
    assert reference["auc_difference"] == reference["auc_interval"] == 0
    assert reference["frozen_of_reference_dense"] == pytest.approx(0.8)
    assert small["frozen_of_reference_dense"] == pytest.approx(0.3)
    assert small["auc_difference"] == pytest.approx(0.02)
    assert small["auc_interval"] == pytest.approx(12.706 * 0.01)  # differences .01 and .03
    assert small["rmse_difference"] == pytest.approx(-0.1)
    assert "| small | 30% | 2 | 0.6700 | +0.0200 ± 0.1271 | -0.1000 ± 0.0000 |" in frontier.table(found)
    assert "| small | no budget | +0.0200 ± 0.1271 | -0.1000 ± 0.0000 |" in frontier.table(found)
    frontier.plot({"made up": found}, tmp_path / "plot.svg")
    assert "small" in (tmp_path / "plot.svg").read_text()


def test_the_published_results_are_of_these_configurations(frontier: ModuleType) -> None:
    published = json.loads((ROOT / "docs" / "results" / "frontier.json").read_text())
    expected = {s.name: {m.label: [*s.settings, *m.settings] for m in s.models} for s in frontier.studies(Path("raw"))}
    found = {name: {row["label"]: row["settings"] for row in study["models"]} for name, study in published.items()}
    assert found == expected
    assert all(len(row["runs"]) >= 6 for study in published.values() for row in study["models"])
