"""How good scores are: each task's measures on one split or log, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipelines import gates
from pipelines.logs.places import Place
from pipelines.logs.reader import LogReader
from pipelines.training.examples import Examples, read_whole
from ranking import metrics
from ranking.encoding import Inputs
from ranking.errors import LogError
from ranking.frozen import FrozenRanker
from ranking.losses import scores as to_scores
from ranking.metrics import Array, Ids
from ranking.schema import Task
from ranking.specialisation import Specialisation


@dataclass(frozen=True)
class Predictions:
    """Labels and scores side by side.

    Attributes:
        labels: [rows, tasks], NaN where masked.
        scores: [rows, tasks].
        users: [rows].
    """

    labels: Array
    scores: Array
    users: Ids


Score = Callable[[Inputs], tuple[torch.Tensor, torch.Tensor]]
"""Scores [rows, tasks] of rows, and the gate's weights on them: [tasks, experts], or [rows, tasks, experts]."""


@torch.no_grad()
def predict(stream: Iterable[Examples], score: Score, specialisation: Specialisation) -> Predictions:
    """Scores every example of a stream, a part at a time; keeps labels, scores and users, not features.

    Args:
        stream: the examples.
        score: what is measured.
        specialisation: takes in what the gate does.

    Raises:
        LogError: the stream is empty.
    """
    parts = []
    for part in stream:
        scores, weights = score(part.inputs)
        specialisation.add(weights, part.labels)
        parts.append((part.labels.numpy(), scores.numpy(), part.users.numpy()))
    if not parts:
        raise LogError("no row to evaluate: move logs.test_from, or name another log with --logs")
    labels, all_scores, users = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Predictions(labels.astype(np.float64), all_scores.astype(np.float64), users)


def evaluate_stream(
    stream: Iterable[Examples],
    score: Score,
    tasks: Sequence[Task],
    num_experts: int,
    trained: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything that is measured on some rows: ``evaluate``, and under ``gates`` what the gate does.

    Args:
        stream: the rows.
        score: what is measured.
        tasks: in the order of its scores.
        num_experts: n.
        trained: ``selection.json``: how training came to the selection; ``gates`` is None if nobody knows.

    Raises:
        LogError: the stream is empty.
    """
    specialisation = Specialisation(tasks, num_experts)
    measures = evaluate(predict(stream, score, specialisation), tasks)
    return {**measures, "gates": None if trained is None else gates.measures(specialisation, trained)}


def evaluate(predictions: Predictions, tasks: Sequence[Task]) -> dict[str, Any]:
    """``{"rows": …, "tasks": {task: measures}}``; a measure that is undefined (one class only, no label) is None.

    Binary tasks: rows, positives, auc with its 95 % interval (users drawn with replacement), gauc, logloss and
    calibration (mean prediction / base rate). Regressions: rows, rmse and its interval, in the transformed unit.
    """
    result: dict[str, Any] = {}
    for i, task in enumerate(tasks):
        known = ~np.isnan(predictions.labels[:, i])
        labels, scores, users = predictions.labels[known, i], predictions.scores[known, i], predictions.users[known]
        measure = _binary if task.kind == "binary" else _regression
        result[task.name] = measure(labels, scores, users) if len(labels) else {"rows": 0}
    return {"rows": len(predictions.labels), "tasks": result}


def evaluate_bundle(ranker: FrozenRanker, logs: Place) -> dict[str, Any]:
    """Measures a bundle on a whole log.

    Raises:
        LogError: the log cannot be used, or holds no row to evaluate.
    """
    schema = ranker.schema
    stream = read_whole(LogReader(logs, schema, dict(ranker.tables)), ranker.encoder)

    def score(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        return to_scores(ranker.graph(inputs, schema.task_names), schema.tasks), ranker.graph.routing(inputs)

    return evaluate_stream(stream, score, schema.tasks, ranker.selection.num_experts, ranker.details.get("selection"))


def _binary(labels: Array, scores: Array, users: Ids) -> dict[str, Any]:
    ranked = metrics.RankedScores(labels, scores)
    return {
        "rows": len(labels),
        "positives": int(labels.sum()),
        "auc": ranked.auc(),
        "auc_interval": metrics.user_bootstrap(ranked.auc, users),
        "gauc": metrics.gauc(labels, scores, users),
        "logloss": metrics.logloss(labels, scores),
        "calibration": metrics.calibration(labels, scores),
    }


def _regression(labels: Array, scores: Array, users: Ids) -> dict[str, Any]:
    squares = np.square(labels - scores)

    def weighted(weights: Array) -> float | None:
        return float(np.sqrt((weights * squares).sum() / weights.sum())) if weights.sum() else None

    return {
        "rows": len(labels),
        "rmse": metrics.rmse(labels, scores),
        "rmse_interval": metrics.user_bootstrap(weighted, users),
    }


def table(evaluation: dict[str, Any]) -> str:
    """The evaluation as lines of text for a person."""
    lines = [
        f"{evaluation['rows']:,} rows",
        f"{'task':<16}{'positives':>10}{'auc':>8}{'95 % interval':>18}"
        f"{'gauc':>8}{'logloss':>9}{'calibr.':>9}{'rmse':>8}",
    ]
    for name, m in evaluation["tasks"].items():
        interval = m.get("auc_interval") or m.get("rmse_interval")
        between = f"{interval[0]:.4f}–{interval[1]:.4f}" if interval else "–"
        cells = [_cell(m.get("positives"), ",d", 10), _cell(m.get("auc"), ".4f", 8), f"{between:>18}"]
        cells += [
            _cell(m.get("gauc"), ".4f", 8),
            _cell(m.get("logloss"), ".4f", 9),
            _cell(m.get("calibration"), ".3f", 9),
        ]
        lines.append(f"{name:<16}" + "".join(cells) + _cell(m.get("rmse"), ".4f", 8))
    if evaluation.get("gates"):
        lines += ["", gates.table(evaluation["gates"])]
    return "\n".join(lines)


def _cell(value: float | None, form: str, width: int) -> str:
    return f"{'–' if value is None else format(value, form):>{width}}"
