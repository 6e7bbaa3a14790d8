"""Fixtures: predictions with chosen labels and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pipelines.config.config import EvaluationConfig
from pipelines.evaluation.evaluate import evaluate_predictions
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.spilled_columns import SpilledColumns
from ranking.frozen.calibration import Calibration
from ranking.metrics import UnitDraws
from ranking.model.gate_stats import GateStatistics
from ranking.schema import Task

MakePredictions = Callable[..., Predictions]


def evaluate_with_new_draws(predictions: Predictions, settings: EvaluationConfig | None = None) -> dict[str, Any]:
    """Evaluate predictions as ``evaluate`` does; by default with the default settings."""
    settings = settings or EvaluationConfig()
    return evaluate_predictions(predictions, settings, UnitDraws(predictions.units, settings.bootstrap))


@pytest.fixture
def make_predictions() -> MakePredictions:
    """Return a function that makes predictions from labels and scores [rows][tasks].

    By default, every row belongs to a different user.
    """

    def make(
        tasks: Sequence[Task],
        labels: Sequence[Sequence[float]],
        scores: Sequence[Sequence[float]],
        users: Sequence[int] | None = None,
        requests: Sequence[int] | None = None,
        days: Sequence[int] | None = None,
        calibration: Calibration | None = None,
        positions: Sequence[int] | None = None,
        files: tuple[str, ...] = ("part-0",),
    ) -> Predictions:
        outputs = np.array(scores, np.float64).reshape(len(scores), len(tasks))
        for i, task in enumerate(tasks):
            if task.kind == "binary":
                with np.errstate(divide="ignore"):
                    outputs[:, i] = np.log(outputs[:, i]) - np.log1p(-outputs[:, i])
        rows = len(outputs)
        return Predictions(
            tuple(tasks),
            SpilledColumns.of(np.array(labels, np.float32).reshape(rows, len(tasks))),
            SpilledColumns.of(outputs.astype(np.float32)),
            calibration or Calibration(),
            np.array(range(1, rows + 1) if users is None else users, np.int64),
            np.array([0] * rows if days is None else days, np.int64),
            None if requests is None else np.array(requests, np.int64),
            (),
            files,
            np.array(range(rows) if positions is None else positions, np.int64),
            GateStatistics(tasks, num_experts=1),
        )

    return make
