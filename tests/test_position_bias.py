"""Effect of the position tower: scores rank items by quality, not by the position at which they were shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipelines.config.config import load_config
from pipelines.datasets.write import feature, task, write_logs
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train

ITEMS, SLATE, ROWS = 60, 10, 12_000
EFFECT = 0.35
"""Decrease of the click logit per position."""


def write_slates(folder: Path, seed: int) -> npt.NDArray[np.float64]:
    """Write a log of slates whose order is unrelated to item quality, with and without the position tower.

    Returns:
        Quality of each item.
    """
    random = np.random.default_rng(seed)
    quality, estimate = random.normal(size=(2, ITEMS))
    shown = np.argsort(random.random((ROWS // SLATE, ITEMS)), axis=1)[:, :SLATE]
    order = np.argsort(0.3 * random.normal(size=shown.shape) - estimate[shown], axis=1)
    item, position = np.take_along_axis(shown, order, 1).ravel(), np.tile(np.arange(SLATE), ROWS // SLATE)
    clicked = random.random(ROWS) < 1 / (1 + np.exp(EFFECT * position - quality[item]))
    log = {
        "time": np.datetime64("2026-01-01", "ms") + np.arange(ROWS) * (10 * 86_400_000 // ROWS),
        "user_id": ["u"] * ROWS,
        "item_id": item,
        "position": position,
        "click": clicked.astype(np.int8),
    }
    config: dict[str, Any] = {
        "name": "slates",
        "columns": {"time": "time"},
        "logs": {"validation_from": "2026-01-09", "test_from": "2026-01-10"},
        "features": [feature("item_id", "categorical", "item", dim=8)],
        "tasks": [task("click", "binary")],
        "model": {"expert_layers": [16], "tower_layers": [8], "gate": {"kind": "shared_bottom"}},
        "training": {"batch_size": 128, "epochs": 2, "learning_rate": {"embeddings": 0.01, "trunk": 0.003}},
    }
    position_aware = {
        **config,
        "features": [*config["features"], feature("position", "categorical", "context", training_only=True, dim=4)],
        "model": {**config["model"], "side_tower": {"features": ["position"]}},
    }
    users, items = pa.table({"user_id": ["u"]}), pa.table({"item_id": [0]})
    write_logs(folder / "plain", config, pa.table(log), users=users, items=items)
    write_logs(folder / "position_aware", position_aware, pa.table(log), users=users, items=items)
    return quality


def rank_correlation(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Return Spearman's rank correlation of values without ties."""
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))])
def test_position_tower_improves_the_rank_correlation_of_scores_with_item_quality(tmp_path: Path, seed: int) -> None:
    quality, correlations = write_slates(tmp_path, seed), {}
    for kind in ("plain", "position_aware"):
        run = train(load_config(tmp_path / kind / "ranker.toml"), tmp_path / f"{kind} run")
        ranker = freeze_run(run.path, tmp_path / f"{kind} bundle")
        scores = ranker.score(pa.table({"user_id": ["u"] * ITEMS, "item_id": np.arange(ITEMS)}))
        correlations[kind] = rank_correlation(scores["click"].to_numpy(), quality)
    # Over eight seeds, the measured gain is 0.13 to 0.22: from 0.59–0.72 to 0.73–0.86.
    assert correlations["position_aware"] - correlations["plain"] > 0.05, correlations
