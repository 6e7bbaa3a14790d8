"""Quality of the default settings on KuaiRand, and relative to the oracle of a synthetic log."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from pipelines.config.config import load_config
from pipelines.datasets.synthetic import generate
from pipelines.jobs.train import train
from ranking import metrics

SEEDS = (0, 1, 2)


def ranker(*arguments: str | Path) -> str:
    """Run the command line and return its standard output."""
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def load_evaluation(run: Path) -> dict[str, Any]:
    """Check the selection of a run and return its evaluation of the test split."""
    selection = json.loads((run / "selection.json").read_text())
    assert selection["converged"]
    assert selection["binary_at_step"] < selection["steps"]
    for weights in selection["tasks"].values():
        assert 1 <= len(weights) <= selection["k"]
        assert sum(weights.values()) == pytest.approx(1.0, abs=1e-5)
    evaluation: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return evaluation


@pytest.mark.nightly(
    short="tests/test_gates_on_kuairand.py"
    "::test_gate_of_every_kind_trains_on_kuairand_and_serves_the_scores_of_the_dense_model"
)
def test_kuairand_with_default_settings_reaches_the_target_metrics(kuairand_raw: Path, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ranker("logs", "kuairand", "--raw", kuairand_raw, "--out", tmp_path / "logs")
    for seed in SEEDS:
        options = ["--set", f"training.seed={seed}", *(["--set", "evaluation.baselines=[]"] if seed else [])]
        ranker("train", tmp_path / "logs" / "ranker.toml", "--run", tmp_path / f"run-{seed}", *options)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime < 15 * 60 * len(SEEDS)
    assert usage.ru_maxrss * 1024 < 4 * 2**30
    evaluations = [load_evaluation(tmp_path / f"run-{seed}") for seed in SEEDS]
    assert json.loads(ranker("evaluate", tmp_path / "run-0", "--json")) == evaluations[0]
    ranker("freeze", tmp_path / "run-0", "--out", tmp_path / "bundle")
    ranker("publish", tmp_path / "bundle", tmp_path / "repository")
    costs = [json.loads((tmp_path / f"run-{seed}" / "selection.json").read_text())["flops"] for seed in SEEDS]
    assert all(cost["frozen"] <= 0.4 * cost["dense"] for cost in costs), costs

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


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        (20_000, 0.80),  # measured over three seeds: 0.822 to 0.834
        pytest.param(200_000, 0.88, marks=pytest.mark.nightly),  # measured over three seeds: 0.897 to 0.901
    ],
)
def test_synthetic_log_auc_gain_is_close_to_that_of_the_oracle(tmp_path: Path, rows: int, share: float) -> None:
    generate(tmp_path / "logs", rows)
    test = ds.dataset(tmp_path / "logs" / "log", partitioning="hive").to_table(filter=ds.field("date") == "2026-01-10")
    overrides = ["evaluation.bootstrap=0", "evaluation.baselines=[]"]
    train(load_config(tmp_path / "logs" / "ranker.toml", overrides), tmp_path / "run")
    evaluation, shares = load_evaluation(tmp_path / "run"), []
    for task in ("click", "long_view", "share", "like", "follow", "dislike"):
        oracle = metrics.auc(test[task].to_numpy().astype(np.float64), test[f"true_{task}"].to_numpy())
        assert oracle is not None
        shares.append((evaluation["tasks"][task]["auc"] - 0.5) / (oracle - 0.5))
    assert np.mean(shares) >= share, shares
