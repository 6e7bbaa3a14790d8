"""Sections on the quality of the predictions: metrics with intervals, calibration, slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.evaluation.format import describe_few, describe_intervals, describe_rows
from pipelines.report.plots import MANY_TASKS, Axis, Size, calibration_plot
from pipelines.report.run_data import RunData
from pipelines.report.section import Section

METRICS = {
    "auc": ("AUC", 4),
    "gauc": ("GAUC", 4),
    "gauc_by_user_day": ("GAUC by user-day", 4),
    "ndcg": ("NDCG", 4),
    "logloss": ("log loss", 4),
    "normalised_entropy": ("norm. entropy", 4),
    "calibration": ("calibration", 3),
    "calibration_error": ("calibration error", 4),
    "rmse": ("RMSE", 4),
    "mae": ("MAE", 4),
    "r2": ("R²", 4),
    "label_deviation": ("s.d. of the labels", 4),
}
"""Heading and decimal places of each metric, in the order of the columns."""

HEADLINE_METRICS = ("auc", "rmse")
"""Metrics that represent a task in the slice tables and whisker plots."""

MAX_VALUES_AS_ROWS, MAX_VALUES_AS_COLUMNS = 20, 6
"""Maximum number of slice values in a table with values as rows or as columns."""

WHISKER_WIDTH = 120
"""Width of a whisker plot in pixels."""

NOT_EVALUATED = (
    "There is no evaluation.json because no row of the log is at or after logs.test_from. Evaluate the run on later "
    "days with 'ranker evaluate RUN --logs PATH'."
)


def metrics(run_data: RunData) -> Section:
    """Build the tables of all metrics of all tasks, with intervals."""
    evaluation = run_data.evaluation
    if evaluation is None:
        return Section("metrics", "Quality", omitted=NOT_EVALUATED)
    tasks = evaluation["tasks"]
    tables = []
    for kind in ("binary", "regression"):
        rows = {
            task.name: tasks[task.name] for task in run_data.config.tasks if task.kind == kind and task.name in tasks
        }
        columns = {
            key: value for key, value in METRICS.items() if any(row.get(key) is not None for row in rows.values())
        }
        if rows:
            tables.append({"kind": kind, "rows": rows, "columns": columns, "whiskers": _whiskers(rows)})
    return Section(
        "metrics",
        "Quality",
        "Metrics on the test rows, which are not used for training, with "
        f"{'; '.join([describe_intervals(evaluation.get('intervals')), *describe_few(evaluation)])}. "
        "A calibration of 1 means that the mean prediction equals the mean label.",
        {"tables": tables, "rows": describe_rows(evaluation), "ndcg_at": f"@{evaluation.get('ndcg_at', 'k')}"},
    )


def calibration_curves(run_data: RunData) -> Section:
    """Build the plots of observed against predicted rates of the binary tasks, after and before calibration."""
    title, evaluation = "Calibration", run_data.evaluation
    if evaluation is None:
        return Section("calibration", title, omitted=NOT_EVALUATED)
    curves: Mapping[str, Any] = {
        task: curve for task, curve in (evaluation.get("calibration_curves") or {}).items() if curve
    }
    if not curves:
        has_binary_task = any(task.kind == "binary" for task in run_data.config.tasks)
        omitted = (
            "evaluation.json has no calibration curves because an older version wrote it. Train again to get them."
            if has_binary_task
            else "Only binary tasks have calibration curves, and this run has no binary task."
        )
        return Section("calibration", title, omitted=omitted)
    before = evaluation.get("uncalibrated_curves") or {}
    narrow = len(curves) > MANY_TASKS
    size = Size(200, 185) if narrow else Size(280, 260)
    panels = []
    for task, curve in curves.items():
        name = "after calibration" if task in before else "predicted"
        lines = [("before calibration", "before", before[task])] if before.get(task) else []
        worst = max(curve, key=lambda b: abs(b["predicted"] - b["observed"]))
        label = (
            f"Calibration of {task} in {len(curve)} bins: largest gap {worst['predicted']:.4f} predicted, "
            f"{worst['observed']:.4f} observed"
        )
        panels.append(calibration_plot(task, [*lines, (name, "after", curve)], label, size))
    return Section(
        "calibration",
        title,
        "Observed rate of positives by mean prediction, in bins with equally many test rows, with 95\u00a0% intervals. "
        "On the diagonal, both are equal. The axes have a square-root scale, which separates rare events.",
        {
            "panels": panels,
            "changes": _changes(evaluation.get("uncalibrated") or {}, evaluation["tasks"]),
            "before": bool(before),
            "narrow": narrow,
        },
    )


def slices(run_data: RunData) -> Section:
    """Build the tables of the headline metric of each task by slice."""
    title, evaluation = "Slices", run_data.evaluation
    if evaluation is None:
        return Section("slices", title, omitted=NOT_EVALUATED)
    if not evaluation.get("slices"):
        omitted = (
            'No slices are configured: list features in ranker.toml, such as [evaluation] slices = ["tab"], '
            "and train again."
        )
        return Section("slices", title, omitted=omitted)
    return Section(
        "slices",
        title,
        "AUC (RMSE for regression tasks) by slice, largest slices first, with the interval below each value. Slices "
        "with few positives have wide intervals: compare the intervals before the values.",
        {"tables": [_slice_table(name, values, evaluation) for name, values in evaluation["slices"].items()]},
    )


def _slice_table(name: str, values: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Build a table with slice values as rows and tasks as columns, or transposed if there are many tasks."""
    ranked = sorted(values.items(), key=lambda pair: (-pair[1]["rows"], pair[0]))
    transposed = len(evaluation["tasks"]) > MANY_TASKS
    shown = ranked[: MAX_VALUES_AS_COLUMNS if transposed else MAX_VALUES_AS_ROWS]
    tasks = list(evaluation["tasks"])
    parts = [*shown, ("all", evaluation)]
    names = [(value, part["rows"]) for value, part in parts]
    cells = [[_headline(part["tasks"].get(task) or {}) for task in tasks] for _, part in parts]
    columns, rows = [(task, None) for task in tasks], zip(names, cells, strict=True)
    if transposed:
        columns, rows = names, zip(columns, zip(*cells, strict=True), strict=True)
    return {"name": name, "columns": columns, "rows": list(rows), "more": len(ranked) - len(shown)}


def _headline(task_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value and interval of the metric that represents a task, or None for both."""
    for key in HEADLINE_METRICS:
        if task_metrics.get(key) is not None:
            return {"value": task_metrics[key], "interval": task_metrics.get(f"{key}_interval")}
    return {"value": None, "interval": None}


def _whiskers(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the pixels of each task's headline interval, on one axis for all tasks."""
    headlines = {task: headline for task, row in rows.items() if (headline := _headline(row))["interval"]}
    if len(headlines) < 2:
        return {}  # a single whisker cannot be compared with another
    ends = [end for headline in headlines.values() for end in (headline["value"], *headline["interval"])]
    axis = Axis(min(ends), max(ends), 4, WHISKER_WIDTH - 4)
    return {
        task: {
            "low": axis(headline["interval"][0]),
            "value": axis(headline["value"]),
            "high": axis(headline["interval"][1]),
        }
        for task, headline in headlines.items()
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the (before, after) pairs of the metrics that calibration changes, per task."""
    keys: Sequence[str] = ("calibration", "calibration_error", "logloss")
    return [
        {"task": task, "pairs": [(old.get(key), after[task].get(key)) for key in keys]}
        for task, old in before.items()
        if task in after
    ]
