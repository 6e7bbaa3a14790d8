"""Quality of the default settings on KuaiRand, and relative to the oracle of a synthetic log. Minutes per test."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from ranking import metrics

SEEDS = (0, 1, 2)

pytestmark = pytest.mark.slow


def ranker(*arguments: str | Path) -> str:
    """Run the command line and return its standard output."""
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def train(config: Path, run: Path, seed: int) -> dict[str, Any]:
    """Train with a seed and return the evaluation of the test split."""
    ranker("train", config, "--run", run, "--set", f"training.seed={seed}")
    selection = json.loads((run / "selection.json").read_text())
    assert selection["converged"]
    assert selection["binary_at_step"] < selection["steps"]
    for weights in selection["tasks"].values():
        assert 1 <= len(weights) <= selection["k"]
        assert sum(weights.values()) == pytest.approx(1.0, abs=1e-5)
    evaluation: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return evaluation


def test_kuairand_with_default_settings_reaches_the_target_metrics(kuairand_raw: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    ranker("logs", "kuairand", "--raw", kuairand_raw, "--out", tmp_path / "logs")
    evaluations = [train(tmp_path / "logs" / "ranker.toml", tmp_path / f"run-{seed}", seed) for seed in SEEDS]
    one_seed = (time.monotonic() - start) / len(SEEDS)
    assert json.loads(ranker("evaluate", tmp_path / "run-0", "--json")) == evaluations[0]
    ranker("freeze", tmp_path / "run-0", "--out", tmp_path / "bundle")
    ranker("publish", tmp_path / "bundle", tmp_path / "repository")
    costs = [json.loads((tmp_path / f"run-{seed}" / "selection.json").read_text())["flops"] for seed in SEEDS]
    assert all(cost["frozen"] <= 0.4 * cost["dense"] for cost in costs), costs
    assert one_seed < 15 * 60
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak_bytes < 4 * 2**30

    def mean(task: str, metric: str) -> float:
        return float(np.mean([evaluation["tasks"][task][metric] for evaluation in evaluations]))

    auc = {task: mean(task, "auc") for task in ("click", "long_view", "like", "profile_enter")}
    assert auc["click"] >= 0.718, auc
    assert auc["long_view"] >= 0.722, auc
    assert auc["like"] >= 0.775, auc
    assert auc["profile_enter"] >= 0.675, auc
    assert mean("watch_time", "rmse") <= 1.225
    for rare in ("follow", "comment", "forward", "hate"):
        low, high = evaluations[0]["tasks"][rare]["auc_interval"]
        assert low < evaluations[0]["tasks"][rare]["auc"] < high


def test_synthetic_log_auc_gain_is_close_to_that_of_the_oracle(tmp_path: Path) -> None:
    ranker("logs", "synthetic", "--out", tmp_path / "logs", "--rows", "200000")
    test = ds.dataset(tmp_path / "logs" / "log", partitioning="hive").to_table(filter=ds.field("date") == "2026-01-10")
    evaluation = train(tmp_path / "logs" / "ranker.toml", tmp_path / "run", seed=0)
    shares = []
    for task in ("click", "long_view", "share", "like", "follow", "dislike"):
        oracle = metrics.auc(test[task].to_numpy().astype(np.float64), test[f"true_{task}"].to_numpy())
        assert oracle is not None
        shares.append((evaluation["tasks"][task]["auc"] - 0.5) / (oracle - 0.5))
    assert np.mean(shares) >= 0.88, shares  # measured over three seeds: 0.897 to 0.901
