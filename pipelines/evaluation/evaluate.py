"""Each task's measures, over all rows and over slices of them, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipelines.config.config import EvaluationConfig
from pipelines.config.uri import Uri
from pipelines.evaluation import gates
from pipelines.evaluation.predict import Predictions, predict
from pipelines.evaluation.sources import Scorer
from pipelines.runs import single_task
from ranking.errors import LogError, UsageError
from ranking.metrics import Array, Rows, UserDraws, binary_measures, calibration_curve, interval, regression_measures
from ranking.model.gate_stats import GateStatistics
from ranking.schema import Task

RAISED_BY_NOISE = ("calibration_error",)
"""Measures whose draws lie above the value as the value lies above the truth."""


def evaluate_all(
    sources: Iterable[Scorer], logs: Uri | None = None, slices: Sequence[str] | None = None
) -> dict[str, Any]:
    """``evaluate`` of one model, or of the models of single tasks as if they were one."""
    parts = [evaluate(source, logs, slices) for source in sources]
    return parts[0] if len(parts) == 1 else single_task.evaluation(parts)


def evaluate(source: Scorer, logs: Uri | None = None, slices: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything that is measured: ``measure``, and under ``gates`` what the gate does (None if nobody knows).

    Args:
        source: what is measured.
        logs: on the whole of this log; default: the source's own test split.
        slices: in place of the source's.

    Raises:
        LogError: the log cannot be used, or holds no row to evaluate.
        UsageError: an unknown slice.
    """
    settings, schema = source.settings, source.schema
    if slices is not None:
        settings = settings.model_copy(update={"slices": tuple(dict.fromkeys(slices))})
    for name in settings.slices:
        if name not in schema.sliceable:
            raise UsageError(f"no slice '{name}' of {source.name}: choose from {', '.join(schema.sliceable)}")
    specialisation = GateStatistics(schema.tasks, source.num_experts)
    result = measure(predict(source, source.span(logs), settings.slices, specialisation), settings)
    try:
        return {**result, "gates": None if source.trained is None else gates.measures(specialisation, source.trained)}
    except KeyError as error:
        raise LogError(
            f"{source.name}: selection.json lacks {error}: the run is of another version; train again"
        ) from None


def measure(predictions: Predictions, settings: EvaluationConfig) -> dict[str, Any]:
    """What ``evaluation.json`` holds, but for the gates; see docs/evaluation.md.

    A measure that is undefined (one class only, no label) is None. ``uncalibrated`` and
    ``uncalibrated_curves`` are there if a task is calibrated.
    """
    draws = UserDraws(predictions.users, settings.bootstrap)
    groups = {one.name: one.groups() for one in predictions.slices}
    tasks: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    uncalibrated_curves: dict[str, Any] = {}
    uncalibrated: dict[str, Any] = {}
    slices: dict[str, Any] = {
        name: {value: {"rows": len(rows), "tasks": {}} for value, rows in values.items()}
        for name, values in groups.items()
    }
    for i, task in enumerate(predictions.tasks):
        known = predictions.known(i)
        whole = predictions.rows(i, draws.users, known)
        tasks[task.name] = compute_metrics(task, whole, draws, settings)
        if task.kind == "binary" and len(whole):
            curves[task.name] = calibration_curve(whole, draws)
        if task.name in predictions.calibration.tasks:
            before = predictions.rows(i, draws.users, known, calibrated=False)
            uncalibrated[task.name] = compute_metrics(task, before, draws, settings)
            uncalibrated_curves[task.name] = calibration_curve(before, draws)
        for name, values in groups.items():
            for value, rows in values.items():
                part = predictions.rows(i, draws.users, rows[known[rows]])
                slices[name][value]["tasks"][task.name] = compute_metrics(task, part, draws, settings)
    return {
        "rows": len(predictions),
        "ndcg_at": settings.ndcg_at,
        "tasks": tasks,
        "calibration_curves": curves,
        "slices": slices,
        **({"uncalibrated": uncalibrated, "uncalibrated_curves": uncalibrated_curves} if uncalibrated else {}),
    }


def compute_metrics(task: Task, rows: Rows, draws: UserDraws, settings: EvaluationConfig) -> dict[str, Any]:
    """Rows, positives, and each measure ``m`` with its ``m_interval``."""
    if not len(rows):
        return {"rows": 0}
    found: dict[str, Any] = {"rows": len(rows)}
    if task.kind == "binary":
        found["positives"] = int(rows.labels.sum())
    for name, values in flatten_metrics(task, rows, draws, settings).items():
        between = interval(values, reflected=name in RAISED_BY_NOISE)
        if name in RAISED_BY_NOISE and between is not None:
            between = (max(between[0], 0.0), max(between[1], 0.0))
        found[name] = float(values[0]) if values[0] == values[0] else None
        found[f"{name}_interval"] = None if between is None else list(between)
    return found


def flatten_metrics(task: Task, rows: Rows, draws: UserDraws, settings: EvaluationConfig) -> dict[str, Array]:
    """Each measure of the task's kind, in the data and in each draw."""
    if task.kind == "binary":
        return binary_measures(rows, draws, settings.ndcg_at)
    return regression_measures(rows, draws)
