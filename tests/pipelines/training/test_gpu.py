"""Trainings on a GPU; without one, they are skipped."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.config.config import Config, load_config
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import load_optimizers
from pipelines.training.warm_start import WarmStart
from ranking.artifacts import bundle
from tests.conftest import GATES, SMALL

SETTINGS = [*SMALL, "training.epochs=2", "model.dropout=0.1", "evaluation.baselines=[]", "evaluation.bootstrap=0"]

pytestmark = pytest.mark.usefixtures("gpu")


def config_for(logs: Path, gate: str, *more: str) -> Config:
    return load_config(logs / "ranker.toml", [*SETTINGS, *GATES[gate], *more])


def metrics(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def interrupted(config: Config, folder: Path, checks: int) -> None:
    """Train until this check, which is not yet part of a checkpoint."""
    lines = []

    def interrupt(line: dict[str, Any]) -> None:
        lines.append(line)
        if len(lines) == checks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, on_check=interrupt)


@pytest.mark.parametrize("gate", GATES)
def test_train_converges_and_its_bundle_has_the_same_scores(logs: Path, tmp_path: Path, gate: str) -> None:
    allocated = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run = train(config_for(logs, gate), tmp_path / "run")
    assert torch.cuda.max_memory_allocated() > allocated
    assert run.load_selection()["converged"] is True
    freeze_run(run.path, tmp_path / "bundle")  # compares the scores of the bundle with those of the run
    assert bundle.load(tmp_path / "bundle").schema.task_names == list(run.load_config().task_names)


def test_train_reaches_the_validation_loss_of_a_cpu(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(logs, "dselect_k", "model.dropout=0")
    on_gpu = metrics(train(config, tmp_path / "gpu"))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        on_cpu = metrics(train(config, tmp_path / "cpu"))
    assert on_gpu[0]["validation_total"] == pytest.approx(on_cpu[0]["validation_total"], rel=1e-4)
    assert on_gpu[-1]["validation_total"] == pytest.approx(on_cpu[-1]["validation_total"], rel=0.02)


def test_train_in_bfloat16_reaches_a_similar_validation_loss(logs: Path, tmp_path: Path) -> None:
    full, half = (
        metrics(train(config_for(logs, "dselect_k", f"training.precision={precision}"), tmp_path / precision))
        for precision in ("float32", "bfloat16")
    )
    assert half[-1]["validation_total"] == pytest.approx(full[-1]["validation_total"], rel=0.05)


@pytest.mark.parametrize("gate", ["dselect_k", "dselect_k per example budget", "top_k per example", "attentive"])
def test_resume_continues_with_the_losses_of_an_uninterrupted_run(logs: Path, tmp_path: Path, gate: str) -> None:
    """Sums of a GPU may differ in their last digits; a lost state of an optimizer or generator differs much more."""
    config = config_for(logs, gate)
    uninterrupted = metrics(train(config, tmp_path / "uninterrupted"))
    interrupted(config, tmp_path / "run", 5)
    resumed = metrics(train(config, tmp_path / "run", resume=True))
    assert [line["step"] for line in resumed] == [line["step"] for line in uninterrupted]
    for line, expected in zip(resumed[:6], uninterrupted[:6], strict=True):
        assert line["train"] == pytest.approx(expected["train"], rel=1e-3)


def test_resume_on_a_gpu_of_a_run_of_a_cpu_finishes(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(logs, "dselect_k")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        interrupted(config, tmp_path / "run", 5)
    assert train(config, tmp_path / "run", resume=True).load_selection()["converged"] is True


def test_warm_start_continues_with_the_state_of_the_optimizers(logs: Path, tmp_path: Path) -> None:
    config = config_for(logs, "dselect_k")
    earlier = train(config, tmp_path / "earlier")
    steps = {name: value for name, value in load_optimizers(earlier).items() if name.endswith(".step")}
    run = train(config, tmp_path / "run", warm_start=WarmStart(earlier, reopen=False))
    continued = {name: value for name, value in load_optimizers(run).items() if name.endswith(".step")}
    assert steps
    assert all(continued[name] >= value for name, value in steps.items())
    assert math.isfinite(metrics(run)[-1]["validation_total"])
