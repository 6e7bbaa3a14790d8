"""Fakes of ``train`` for the trials of a study."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.config import Config
from pipelines.runs.run import RunFolder
from pipelines.tuning import trial

FakeTraining = Callable[[Config, Callable[[dict[str, Any]], None]], dict[str, Any]]


def check(step: int, loss: float, phase: str = "selected") -> dict[str, Any]:
    return {"step": step, "phase": phase, "validation_total": loss, "best": phase == "selected"}


def fake_trainings(monkeypatch: pytest.MonkeyPatch, *trainings: FakeTraining | Exception) -> None:
    """Replace ``train`` by fakes that run in this order."""
    remaining: Iterator[FakeTraining | Exception] = iter(trainings)

    def train(
        config: Config, folder: Path, *, on_check: Callable[[dict[str, Any]], None], prepared: RunFolder | None
    ) -> RunFolder:
        training = next(remaining)
        run = RunFolder.create(folder, config)
        run.encoder.mkdir()
        run.best.write_text("weights")
        if isinstance(training, Exception):
            raise training
        run.selection.write_text(json.dumps({"converged": True, "snapped_codes": 0, **training(config, on_check)}))
        return run

    monkeypatch.setattr(trial, "train", train)


def training_with_losses(*losses: float, **selection: Any) -> FakeTraining:
    def training(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        for step, loss in enumerate(losses, start=1):
            on_check(check(step, loss))
        return selection

    return training
