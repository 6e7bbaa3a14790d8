"""Evaluations and comparisons as text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.data.user_share import describe_share
from pipelines.evaluation.baselines.format import (
    baseline_tables,
    describe_baselines,
    describe_omitted,
    paired_baseline_tables,
)
from pipelines.evaluation.gates import format_gates
from pipelines.evaluation.importance.format import format_importance
from pipelines.evaluation.text_table import TASKS_PER_TABLE, UNDEFINED, align_columns
from ranking.metrics import FEW_UNITS, MIN_UNITS
from ranking.metrics.verdict import verdict

DECIMALS = {"calibration": 3}
"""Decimal places by metric; 4 for all others."""
RARE = {"auc": "a positive, or a negative", "rmse": "a label"}
"""Labels that a task without intervals has too few of, by the main metric of its kind."""


def format_evaluation(evaluation: Mapping[str, Any]) -> str:
    """Format the result of ``evaluate``: verdict, tasks, baselines, calibration, slices, importance, gates, advice."""
    tasks = evaluation["tasks"]
    blocks = _task_tables(tasks, evaluation["ndcg_at"])
    bad_rows = sum(evaluation.get("bad_rows", {}).values())
    left_out = f"; {bad_rows:,} bad rows are not evaluated" if bad_rows else ""
    blocks[0].insert(0, f"{describe_rows(evaluation)}{left_out}; {describe_intervals(evaluation.get('intervals'))}")
    blocks[0][1:1] = describe_few(evaluation)
    baselines = evaluation.get("baselines")
    if lines := verdict(baselines):
        blocks.insert(0, lines)
    if baselines and "tasks" in baselines:
        blocks += _baseline_blocks(baselines)
    if evaluation.get("uncalibrated"):
        blocks.append(_calibration_table(evaluation["uncalibrated"], tasks))
    for name, values in evaluation["slices"].items():
        blocks += _slice_tables(name, values, list(tasks))
    if evaluation.get("importance"):
        blocks += format_importance(evaluation["importance"])
    if evaluation.get("gates"):
        blocks.append([format_gates(evaluation["gates"])])
    if evaluation.get("advice"):
        blocks.append([f"advice: {evaluation['advice']['verdict']}"])
    return "\n\n".join("\n".join(block) for block in blocks)


def format_comparison(comparison: Mapping[str, Any]) -> str:
    """Format the result of ``compare``, with one line per task and metric."""
    rows = [["task", "metric", "A", "B", "B − A", "95 % interval", ""]]
    baselines = comparison.get("baselines")
    for task, result in comparison["tasks"].items():
        for metric, m in result["measures"].items():
            if m["a"] is None and m["b"] is None:
                continue
            name = f"ndcg@{comparison['ndcg_at']}" if metric == "ndcg" else metric
            bounds, mark = UNDEFINED, ""
            if m["interval"] is not None:
                bounds = " … ".join(_signed(end) for end in m["interval"])
                mark = "" if m["interval"][0] <= 0 <= m["interval"][1] else "*"
            outcome = f"{mark} {m['better'].upper()} is better" if m["better"] else mark
            cells = [_number(metric, m["a"]), _number(metric, m["b"]), _signed(m["difference"]), bounds, outcome]
            rows.append([task, name, *cells])
    few = {
        metric: [
            name for name, result in comparison["tasks"].items() if _lacks_interval(result["measures"].get(metric))
        ]
        for metric in RARE
    }
    head = [
        f"A  {comparison['a']}",
        f"B  {comparison['b']}",
        f"{describe_rows(comparison)}; * the interval excludes 0",
        describe_intervals(comparison.get("intervals")),
        *_describe_few(few, comparison.get("intervals")),
        *_describe_deviations(comparison["tasks"]),
        *(f"{side.upper()}  {line}" for side in ("a", "b") for line in verdict((baselines or {}).get(side))),
        "",
    ]
    lines = head + align_columns(rows, left=(0, 1, 6))
    for table in paired_baseline_tables(baselines or {}):
        lines += ["", *align_columns(table, left=(0, 1, 2))]
    return "\n".join(lines)


def _describe_deviations(tasks: Mapping[str, Any]) -> list[str]:
    """Return a line with the standard deviation of the labels of the regression tasks, if there are any."""
    deviations = [f"{name} {m['label_deviation']:.4f}" for name, m in tasks.items() if "label_deviation" in m]
    return [f"standard deviation of the labels: {', '.join(deviations)}"] if deviations else []


def describe_rows(evaluation: Mapping[str, Any]) -> str:
    """Describe the rows of an evaluation or comparison; all users are evaluated if it does not record a share."""
    return f"{evaluation['rows']:,} rows{describe_share(evaluation.get('users', 1.0))}"


def describe_intervals(intervals: Mapping[str, Any] | None) -> str:
    """Describe the units that the intervals of an evaluation or comparison draw.

    Args:
        intervals: entry ``intervals``; None in files of older versions, which drew users.
    """
    if intervals is None:
        return "95 % intervals over users"
    unit, units, without_user = intervals["unit"], intervals["units"], intervals["rows_without_user"]
    if not intervals["draws"]:
        return "no intervals, because evaluation.bootstrap = 0"
    text = (
        f"no intervals: {describe_few_units(intervals)}"
        if units < MIN_UNITS
        else f"95 % intervals over {units:,} {unit}s"
    )
    placeholder = intervals.get("placeholder_user", False)
    if unit != "user":
        cause = "one user has more than half of the rows, and such an id counts as missing"
        text += f", because {cause if placeholder else 'most rows have no user'}"
    elif placeholder:
        text += f" ({without_user:,} rows, most of one user with more than half of all, count by request or singly)"
    elif without_user:
        text += f" ({without_user:,} rows without a user count by request or singly)"
    return f"{text}; with fewer than {FEW_UNITS} they are rough" if MIN_UNITS <= units < FEW_UNITS else text


def describe_few(evaluation: Mapping[str, Any]) -> list[str]:
    """Return a line per reason with the tasks that have no intervals because too few units have a label, if any."""
    few = {
        metric: [
            name
            for name, m in evaluation["tasks"].items()
            if m.get(metric) is not None and not m.get(f"{metric}_interval")
        ]
        for metric in RARE
    }
    return _describe_few(few, evaluation.get("intervals"))


def _describe_few(tasks: Mapping[str, Sequence[str]], intervals: Mapping[str, Any] | None) -> list[str]:
    if intervals is None or not intervals["draws"] or intervals["units"] < MIN_UNITS:
        return []
    return [
        f"no intervals for {', '.join(names)}: {describe_rare_labels(metric, intervals['unit'])}"
        for metric, names in tasks.items()
        if names
    ]


def _lacks_interval(entry: Mapping[str, Any] | None) -> bool:
    """Return whether a metric of a comparison has a difference without an interval."""
    return entry is not None and entry["difference"] is not None and entry["interval"] is None


def describe_rare_labels(metric: str, unit: str) -> str:
    """Return why a task has no intervals.

    Args:
        metric: "auc" for a binary task, "rmse" for a regression task.
        unit: unit that the bootstrap draws.
    """
    return f"fewer than {MIN_UNITS} {unit}s have {RARE[metric]}"


def describe_few_units(intervals: Mapping[str, Any]) -> str:
    """Return that there are too few units for any interval."""
    unit, units = intervals["unit"], intervals["units"]
    return f"there is only one {unit}" if units == 1 else f"there are only {units} {unit}s"


def _task_tables(tasks: Mapping[str, Any], ndcg_at: int) -> list[list[str]]:
    """Format one table of binary tasks and one of regression tasks, which have different metrics."""
    binary = {name: m for name, m in tasks.items() if "rmse" not in m}
    regression = {name: m for name, m in tasks.items() if "rmse" in m}
    blocks = []
    if binary:
        shown = {
            "gauc": "gauc",
            "gauc_by_user_day": "gauc/day",
            "ndcg": f"ndcg@{ndcg_at}",
            "logloss": "logloss",
            "normalised_entropy": "norm.entr.",
            "calibration": "calibr.",
            "calibration_error": "cal.error",
        }
        rows = [["task", "positives", "auc", "95 % interval", *shown.values()]]
        for name, m in binary.items():
            auc, *others = (_number(metric, m.get(metric)) for metric in ("auc", *shown))
            rows.append([name, _count(m.get("positives")), auc, _interval(m.get("auc_interval")), *others])
        blocks.append(align_columns(rows))
    if regression:
        rows = [["task", "rows", "rmse", "95 % interval", "mae", "r²", "label s.d."]]
        for name, m in regression.items():
            cells = [_number("rmse", m["rmse"]), _interval(m["rmse_interval"]), _number("mae", m["mae"])]
            cells += [_number("r2", m.get("r2")), _number("label_deviation", m.get("label_deviation"))]
            rows.append([name, _count(m["rows"]), *cells])
        blocks.append(align_columns(rows))
    return blocks


def _baseline_blocks(baselines: Mapping[str, Any]) -> list[list[str]]:
    """Format the metrics of the baselines, and why some of them are omitted."""
    blocks = [align_columns(table, left=(0, 1)) for table in baseline_tables(baselines)] or [[]]
    blocks[0].insert(0, f"baselines, {describe_baselines(baselines)}")
    blocks[-1] += describe_omitted(baselines)
    return blocks


def _calibration_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Format the metrics that calibration changes, after and before it."""
    shown = (
        ("logloss", "logloss"),
        ("normalised_entropy", "norm.entr."),
        ("calibration", "calibr."),
        ("calibration_error", "cal.error"),
    )
    rows = [["calibrated", *(text for _, title in shown for text in (title, "before"))]]
    for task, m in before.items():
        pairs = ((after[task].get(metric), m.get(metric)) for metric, _ in shown)
        cells = (_number(metric, v) for (metric, _), pair in zip(shown, pairs, strict=True) for v in pair)
        rows.append([task, *cells])
    return align_columns(rows)


def _slice_tables(name: str, values: Mapping[str, Any], tasks: list[str]) -> list[list[str]]:
    """Format one line per slice value: its rows and the AUC or RMSE of each task."""
    blocks = []
    for start in range(0, len(tasks), TASKS_PER_TABLE):
        columns = tasks[start : start + TASKS_PER_TABLE]
        rows = [[name, "rows", *columns]]
        for value, result in values.items():
            metrics = (result["tasks"][task] for task in columns)
            cells = (_number("auc", m.get("auc", m.get("rmse"))) for m in metrics)
            rows.append([value, _count(result["rows"]), *cells])
        blocks.append([f"by {name}: AUC of binary tasks, RMSE of regression tasks", *align_columns(rows)])
    return blocks


def _count(value: int | None) -> str:
    return UNDEFINED if value is None else f"{value:,}"


def _number(metric: str, value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.{DECIMALS.get(metric, 4)}f}"


def _signed(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:+z.4f}"


def _interval(ends: list[float] | None) -> str:
    return UNDEFINED if ends is None else f"{ends[0]:.4f}–{ends[1]:.4f}"
