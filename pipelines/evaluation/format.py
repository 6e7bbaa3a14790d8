"""Evaluations and comparisons as lines of text for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.evaluation import gates

DASH = "–"
TASKS_A_TABLE = 9
"""Columns of a slice's table, so that it fits a terminal."""
DIGITS = {"calibration": 3}
"""After the point; 4 by default."""


def table(evaluation: Mapping[str, Any]) -> str:
    """What ``measuring.evaluate`` found: tasks, calibration before and after, slices, gates."""
    tasks = evaluation["tasks"]
    blocks = _measures(tasks, evaluation["ndcg_at"])
    blocks[0].insert(0, f"{evaluation['rows']:,} rows")
    if evaluation.get("uncalibrated"):
        blocks.append(_before_and_after(evaluation["uncalibrated"], tasks))
    for name, values in evaluation["slices"].items():
        blocks += _slice(name, values, list(tasks))
    if evaluation.get("gates"):
        blocks.append([gates.table(evaluation["gates"])])
    return "\n\n".join("\n".join(block) for block in blocks)


def comparison(found: Mapping[str, Any]) -> str:
    """What ``comparing.compare`` found, a line for each task and measure."""
    lines = [["task", "measure", "A", "B", "B − A", "95 % interval", ""]]
    for task, part in found["tasks"].items():
        for measure, m in part["measures"].items():
            if m["a"] is None and m["b"] is None:
                continue
            name = f"ndcg@{found['ndcg_at']}" if measure == "ndcg" else measure
            between, certain = DASH, ""
            if m["interval"] is not None:
                between = " … ".join(_signed(end) for end in m["interval"])
                certain = "" if m["interval"][0] <= 0 <= m["interval"][1] else "*"
            verdict = f"{certain} {m['better'].upper()} is better" if m["better"] else certain
            cells = [_number(measure, m["a"]), _number(measure, m["b"]), _signed(m["difference"]), between, verdict]
            lines.append([task, name, *cells])
    head = [f"A  {found['a']}", f"B  {found['b']}", f"{found['rows']:,} rows; * the interval excludes 0", ""]
    return "\n".join(head + _aligned(lines, left=(0, 1, 6)))


def _measures(tasks: Mapping[str, Any], ndcg_at: int) -> list[list[str]]:
    """Binary tasks, then regressions: their measures are others."""
    binary = {name: m for name, m in tasks.items() if "rmse" not in m}
    numbers = {name: m for name, m in tasks.items() if "rmse" in m}
    blocks = []
    if binary:
        shown = ("auc", "gauc", "ndcg", "logloss", "normalised_entropy", "calibration", "calibration_error")
        head = ("auc", "95 % interval", "gauc", f"ndcg@{ndcg_at}", "logloss", "norm.entr.", "calibr.", "cal.error")
        rows = [["task", "positives", *head]]
        for name, m in binary.items():
            first, *others = (_number(measure, m.get(measure)) for measure in shown)
            rows.append([name, _count(m.get("positives")), first, _interval(m.get("auc_interval")), *others])
        blocks.append(_aligned(rows))
    if numbers:
        rows = [["task", "rows", "rmse", "95 % interval", "mae"]]
        for name, m in numbers.items():
            cells = (_number("rmse", m["rmse"]), _interval(m["rmse_interval"]), _number("mae", m["mae"]))
            rows.append([name, _count(m["rows"]), *cells])
        blocks.append(_aligned(rows))
    return blocks


def _before_and_after(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    head = (("logloss", "logloss"), ("normalised_entropy", "norm.entr."), ("calibration", "calibr."))
    shown = (*head, ("calibration_error", "cal.error"))
    rows = [["calibrated", *(text for _, title in shown for text in (title, "before"))]]
    for task, m in before.items():
        pairs = ((after[task].get(measure), m.get(measure)) for measure, _ in shown)
        cells = (_number(measure, v) for (measure, _), pair in zip(shown, pairs, strict=True) for v in pair)
        rows.append([task, *cells])
    return _aligned(rows)


def _slice(name: str, values: Mapping[str, Any], tasks: list[str]) -> list[list[str]]:
    """One line a value: rows, and each task's AUC or RMSE."""
    blocks = []
    for start in range(0, len(tasks), TASKS_A_TABLE):
        some = tasks[start : start + TASKS_A_TABLE]
        rows = [[name, "rows", *some]]
        for value, part in values.items():
            each = (part["tasks"][task] for task in some)
            rows.append([value, _count(part["rows"]), *(_number("auc", m.get("auc", m.get("rmse"))) for m in each)])
        blocks.append([f"by {name}: auc of binary tasks, rmse of regressions", *_aligned(rows)])
    return blocks


def _aligned(rows: Iterable[list[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Rows as lines with columns as wide as their widest cell, two spaces apart."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}"


def _number(measure: str, value: float | None) -> str:
    return DASH if value is None else f"{value:.{DIGITS.get(measure, 4)}f}"


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+z.4f}"


def _interval(ends: list[float] | None) -> str:
    return DASH if ends is None else f"{ends[0]:.4f}–{ends[1]:.4f}"
