"""Metrics of each task, over all rows and per slice, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pipelines.config.config import EvaluationConfig
from pipelines.config.uri import Uri
from pipelines.data.parquet import find_log_files
from pipelines.engines import Engine, kept_processes
from pipelines.evaluation.baselines.fit import Baselines, fit_baselines
from pipelines.evaluation.baselines.measure import measure_baselines
from pipelines.evaluation.differences import UPWARD_BIASED, bootstrap_metrics
from pipelines.evaluation.gates import gate_metrics
from pipelines.evaluation.importance.measure import measure_importance
from pipelines.evaluation.predict import predict
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.slices import ABSENT
from pipelines.evaluation.sources import Scorer
from pipelines.evaluation.threads import results_of, thread_pool
from pipelines.runs import single_task
from ranking.errors import LogError, UsageError
from ranking.metrics import (
    Ids,
    LabeledScores,
    UnitDraws,
    calibration_curve,
    interval,
    interval_units,
)
from ranking.schema import Task

AT_MOST_ONE = ("auc", "gauc", "gauc_by_user_day", "ndcg", "r2")
"""Metrics that cannot exceed 1."""
CAN_BE_NEGATIVE = ("r2",)
"""Metrics that can be negative."""


@kept_processes()
def evaluate_all(
    sources: Iterable[Scorer],
    logs: Uri | None = None,
    slices: Sequence[str] | None = None,
    users: float | None = None,
    *,
    baselines: bool = False,
    importance: bool = False,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Evaluate one model, or several single-task models as if they were one model; see ``evaluate``."""
    evaluations = [
        evaluate(source, logs, slices, users, baselines=baselines, importance=importance, engine=engine)
        for source in sources
    ]
    return evaluations[0] if len(evaluations) == 1 else single_task.merge_evaluations(evaluations)


def evaluate(
    source: Scorer,
    logs: Uri | None = None,
    slices: Sequence[str] | None = None,
    users: float | None = None,
    *,
    baselines: bool = False,
    importance: bool = False,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Return the content of ``evaluation.json``: ``evaluate_predictions`` plus the gate metrics under ``gates``.

    ``gates`` is None if the selection of the model is unknown. ``baselines`` and ``importance`` are present only if
    requested.

    Args:
        source: the model.
        logs: a log to evaluate on as a whole; default: the test split of the model's own log.
        slices: slice names that replace those of the model's settings.
        users: share of the users that replaces that of the model's settings.
        baselines: whether to fit the configured baselines on the training split and compare the model with them.
        importance: whether to measure the permutation importance of the features.
        engine: scores the files of the log, see ``predict``.

    Raises:
        LogError: the log cannot be used, or it contains no row to evaluate.
        UsageError: a slice name is unknown.
    """
    settings, schema = source.settings, source.schema
    if slices is not None:
        settings = settings.model_copy(update={"slices": tuple(dict.fromkeys(slices))})
    for name in settings.slices:
        if name not in schema.sliceable:
            raise UsageError(f"{source.name} has no slice '{name}': choose from {', '.join(schema.sliceable)}")
    if users is not None:
        settings = settings.model_copy(update={"users": users})
    log_range = replace(source.log_range(logs), users=settings.users)
    find_log_files(log_range.path)  # a wrong path is reported before the baselines are fitted
    fitted = fit_baselines(source) if baselines else None
    predict_baselines = fitted.predict if isinstance(fitted, Baselines) else None
    predictions = predict(source, log_range, settings.slices, predict_baselines, engine)
    draws = UnitDraws(predictions.units, settings.bootstrap)
    evaluation = evaluate_predictions(predictions, settings, draws)
    if fitted is not None:
        evaluation["baselines"] = measure_baselines(predictions, fitted, draws, settings)
    try:
        gates = None if source.selection is None else gate_metrics(predictions.gates, source.selection)
    except KeyError as error:
        raise LogError(
            f"{source.name}: selection.json has no key {error}: another version wrote the run; train again"
        ) from None
    if importance:
        evaluation["importance"] = measure_importance(source, log_range, predictions, settings.bootstrap)
    return {**evaluation, "gates": gates}


def evaluate_predictions(predictions: Predictions, settings: EvaluationConfig, draws: UnitDraws) -> dict[str, Any]:
    """Return the content of ``evaluation.json`` without the gate metrics; docs/evaluation.md defines every metric.

    An undefined metric (only one class, no label) is None. ``uncalibrated`` and ``uncalibrated_curves`` are present
    only if a task is calibrated. ``draws`` are the bootstrap draws of all rows.
    """
    groups = {row_slice.name: row_slice.groups() for row_slice in predictions.slices}
    absent = {owner: replace(predictions, outputs=outputs) for owner, outputs in predictions.without_row.items()}
    tasks: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    uncalibrated_curves: dict[str, Any] = {}
    uncalibrated: dict[str, Any] = {}
    slices: dict[str, Any] = {
        name: {value: {"rows": len(rows), "tasks": {}} for value, rows in values.items()}
        for name, values in groups.items()
    }
    if absent:
        slices[ABSENT] = {owner: {"rows": len(predictions), "tasks": {}} for owner in absent}

    has_label = [predictions.has_label(i) for i in range(len(predictions.tasks))]

    def metrics(
        i: int, rows: Ids | None = None, of: Predictions = predictions, *, calibrated: bool = True
    ) -> dict[str, Any]:
        chosen = has_label[i] if rows is None else rows[has_label[i][rows]]
        return compute_metrics(of.tasks[i], of.task_rows(i, draws, chosen, calibrated=calibrated), draws, settings)

    def curve(i: int, *, calibrated: bool = True) -> list[dict[str, Any]]:
        task_rows = predictions.task_rows(i, draws, has_label[i], calibrated=calibrated)
        return calibration_curve(task_rows, draws)

    with thread_pool(len(predictions)) as pool:
        for i, task in enumerate(predictions.tasks):
            tasks[task.name] = pool.submit(metrics, i)
            has_curve = task.kind == "binary" and has_label[i].any()
            if has_curve:
                curves[task.name] = pool.submit(curve, i)
            if task.name in predictions.calibration.tasks:
                uncalibrated[task.name] = pool.submit(metrics, i, calibrated=False)
                if has_curve:
                    uncalibrated_curves[task.name] = pool.submit(curve, i, calibrated=False)
            for name, values in groups.items():
                for value, rows in values.items():
                    slices[name][value]["tasks"][task.name] = pool.submit(metrics, i, rows)
            for owner, without in absent.items():
                slices[ABSENT][owner]["tasks"][task.name] = pool.submit(metrics, i, None, without)
    evaluation = {
        "rows": len(predictions),
        "users": settings.users,
        "bad_rows": dict(predictions.bad_rows),
        "intervals": draws.to_json(),
        "ndcg_at": settings.ndcg_at,
        "tasks": tasks,
        "calibration_curves": curves,
        "slices": slices,
        **({"uncalibrated": uncalibrated, "uncalibrated_curves": uncalibrated_curves} if uncalibrated else {}),
    }
    return {key: results_of(value) for key, value in evaluation.items()}


def compute_metrics(task: Task, rows: LabeledScores, draws: UnitDraws, settings: EvaluationConfig) -> dict[str, Any]:
    """Return the rows, the positives or the labels' deviation, and each metric ``m`` with its ``m_interval``."""
    if not len(rows):
        return {"rows": 0}
    metrics: dict[str, Any] = {"rows": len(rows)}
    if task.kind == "binary":
        metrics["positives"] = int(rows.labels.sum())
    else:
        metrics["label_deviation"] = float(rows.labels.std())
    units = interval_units(rows, binary=task.kind == "binary")
    for name, values in bootstrap_metrics(task, rows, draws, settings).items():
        bounds = interval(values, units, reflected=name in UPWARD_BIASED)
        if bounds is not None:
            low = bounds[0] if name in CAN_BE_NEGATIVE else max(bounds[0], 0.0)
            bounds = (low, min(bounds[1], 1.0) if name in AT_MOST_ONE else bounds[1])
        metrics[name] = float(values[0]) if values[0] == values[0] else None
        metrics[f"{name}_interval"] = None if bounds is None else list(bounds)
    return metrics
