"""How good the predictions are: measures with their intervals, calibration, slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.report.plots import MANY_TASKS, Axis, Size, calibration
from pipelines.report.run_data import RunData
from pipelines.report.section import Section

MEASURES = {
    "auc": ("AUC", 4),
    "gauc": ("GAUC", 4),
    "ndcg": ("NDCG", 4),
    "logloss": ("log loss", 4),
    "normalised_entropy": ("norm. entropy", 4),
    "calibration": ("calibration", 3),
    "calibration_error": ("calibration error", 4),
    "rmse": ("RMSE", 4),
    "mae": ("MAE", 4),
}
"""Measure → its heading and decimals, in the order of the columns."""

HEADLINES = ("auc", "rmse")
"""The measure that stands for a task."""

VALUES_DOWN, VALUES_ACROSS = 20, 6
"""Values of a slice that are shown as rows and as columns."""

INTERVAL_WIDTH = 120

UNTESTED = (
    "The run has no evaluation.json: no row of the log is as late as logs.test_from. "
    "'ranker evaluate RUN --logs PATH' measures the run on later days."
)


def metrics(facts: RunData) -> Section:
    """Every measure of every task, with intervals."""
    if facts.evaluation is None:
        return Section("metrics", "Quality", lack=UNTESTED)
    tasks = facts.evaluation["tasks"]
    tables = []
    for kind in ("binary", "regression"):
        rows = {task.name: tasks[task.name] for task in facts.config.tasks if task.kind == kind and task.name in tasks}
        columns = {
            key: value for key, value in MEASURES.items() if any(row.get(key) is not None for row in rows.values())
        }
        if rows:
            tables.append({"kind": kind, "rows": rows, "columns": columns, "whiskers": _whiskers(rows)})
    return Section(
        "metrics",
        "Quality",
        "On the test rows, which training never saw, with 95\u00a0% intervals (whole users drawn with replacement). "
        "A calibration of 1 means that as much happens as was predicted.",
        {"tables": tables, "rows": facts.evaluation["rows"], "ndcg_at": f"@{facts.evaluation.get('ndcg_at', 'k')}"},
    )


def calibrations(facts: RunData) -> Section:
    """Predicted against observed rates of binary tasks, after and before calibration."""
    title, found = "Calibration", facts.evaluation
    if found is None:
        return Section("calibration", title, lack=UNTESTED)
    curves: Mapping[str, Any] = {
        task: curve for task, curve in (found.get("calibration_curves") or {}).items() if curve
    }
    if not curves:
        binary = any(task.kind == "binary" for task in facts.config.tasks)
        lack = (
            "This run's evaluation.json has no calibration curves: an older version wrote it. Train again to see them."
            if binary
            else "Only binary tasks have probabilities that could be calibrated; this run has none."
        )
        return Section("calibration", title, lack=lack)
    before = found.get("uncalibrated_curves") or {}
    narrow = len(curves) > MANY_TASKS
    size = Size(200, 185) if narrow else Size(280, 260)
    panels = []
    for task, curve in curves.items():
        now = "after calibration" if task in before else "predicted"
        lines = [("before calibration", "before", before[task])] if before.get(task) else []
        worst = max(curve, key=lambda b: abs(b["predicted"] - b["observed"]))
        label = (
            f"Calibration of {task} in {len(curve)} bins: largest gap {worst['predicted']:.4f} predicted, "
            f"{worst['observed']:.4f} observed"
        )
        panels.append(calibration(task, [*lines, (now, "after", curve)], label, size))
    return Section(
        "calibration",
        title,
        "Test rows in bins of equal size by prediction: the share of positives in each, with its 95\u00a0% interval. "
        "On the diagonal as much happens as was predicted. Axes are square roots, so that rare events stay apart.",
        {
            "panels": panels,
            "changes": _changes(found.get("uncalibrated") or {}, found["tasks"]),
            "before": bool(before),
            "narrow": narrow,
        },
    )


def slices(facts: RunData) -> Section:
    """The headline measure of every task, by slice."""
    title, found = "Slices", facts.evaluation
    if found is None:
        return Section("slices", title, lack=UNTESTED)
    if not found.get("slices"):
        lack = (
            'No slice was measured: name features in ranker.toml, such as [evaluation] slices = ["tab"], '
            "and train again."
        )
        return Section("slices", title, lack=lack)
    return Section(
        "slices",
        title,
        "AUC (of a regression RMSE) where the rows are of one kind, largest slices first; intervals below. Few "
        "positives make wide intervals: compare those before the numbers.",
        {"tables": [_slice_table(name, values, found) for name, values in found["slices"].items()]},
    )


def _slice_table(name: str, values: Mapping[str, Any], everything: Mapping[str, Any]) -> dict[str, Any]:
    """A row a slice, with its rows, and a column a task; the other way round if the tasks are many."""
    ranked = sorted(values.items(), key=lambda pair: (-pair[1]["rows"], pair[0]))
    turned = len(everything["tasks"]) > MANY_TASKS
    shown = ranked[: VALUES_ACROSS if turned else VALUES_DOWN]
    tasks = list(everything["tasks"])
    slices = [*shown, ("all", everything)]
    names = [(value, part["rows"]) for value, part in slices]
    cells = [[_headline(part["tasks"].get(task)) for task in tasks] for _, part in slices]
    columns, rows = [(task, None) for task in tasks], zip(names, cells, strict=True)
    if turned:
        columns, rows = names, zip(columns, zip(*cells, strict=True), strict=True)
    return {"name": name, "columns": columns, "rows": list(rows), "more": len(ranked) - len(shown)}


def headline(measured: Mapping[str, Any] | None) -> tuple[str, float, Sequence[float] | None] | None:
    """The measure that stands for a task: its name, value and interval; None if it has none."""
    for key in HEADLINES:
        value = (measured or {}).get(key)
        if value is not None:
            return key, value, (measured or {}).get(f"{key}_interval")
    return None


def _headline(measured: Mapping[str, Any] | None) -> dict[str, Any]:
    found = headline(measured)
    return {"value": found and found[1], "interval": found and found[2]}


def _whiskers(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Task → pixels of its headline's interval, on one axis for all tasks."""
    found = {task: head for task, row in rows.items() if (head := headline(row)) and head[2]}
    if len(found) < 2:
        return {}  # nothing to compare it with
    ends = [end for _, value, interval in found.values() for end in (value, *interval)]
    axis = Axis(min(ends), max(ends), 4, INTERVAL_WIDTH - 4)
    return {
        task: {"low": axis(interval[0]), "value": axis(value), "high": axis(interval[1])}
        for task, (_, value, interval) in found.items()
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measures that calibration moved: task, and (before, after) of each."""
    keys = ("calibration", "calibration_error", "logloss")
    return [
        {"task": task, "pairs": [(old.get(key), after[task].get(key)) for key in keys]}
        for task, old in before.items()
        if task in after
    ]
