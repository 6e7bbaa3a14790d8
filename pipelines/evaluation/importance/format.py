"""Permutation importance as text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.evaluation.importance.ranked import Entry, by_all_tasks, is_above_zero
from pipelines.evaluation.text_table import TASKS_PER_TABLE, UNDEFINED, align_columns

MAX_FEATURES, MAX_GROUPS = 20, 10
"""Maximum number of features and of groups in the tables; ``--json`` has all."""


def format_importance(importance: Mapping[str, Any]) -> list[list[str]]:
    """Format tables of the features and of the groups by task, as blocks of lines; the most important come first."""
    features = [entry for entry in importance["entries"] if entry["kind"] == "feature"]
    groups = [entry for entry in importance["entries"] if entry["kind"] != "feature"]
    tasks = list(importance["metrics"])
    blocks = _tables("feature", features, MAX_FEATURES, tasks)
    if groups:
        blocks += _tables("shuffled together", groups, MAX_GROUPS, tasks)
    return [[describe_importance(importance)], *blocks]


def describe_importance(importance: Mapping[str, Any]) -> str:
    """Describe what an importance is and which rows it was measured on."""
    metrics = set(importance["metrics"].values())
    parts = [text for metric, text in (("auc", "drop in AUC"), ("rmse", "rise in RMSE")) if metric in metrics]
    shuffles, units = importance["shuffles"], importance["intervals"]
    return (
        f"permutation importance: {' or '.join(parts)} if the values are shuffled, on {importance['rows']:,} rows of "
        f"{units['units']:,} {units['unit']}s, {shuffles} shuffle{'s' if shuffles > 1 else ''}; "
        "* the 95 % interval lies above 0"
    )


def entry_name(entry: Entry) -> str:
    """Return the name of a feature, or the kind and name of a group."""
    return str(entry["name"]) if entry["kind"] == "feature" else f"{entry['kind']} {entry['name']}"


def _tables(title: str, entries: Sequence[Entry], limit: int, tasks: Sequence[str]) -> list[list[str]]:
    shown = by_all_tasks(entries)[:limit]
    blocks = []
    for start in range(0, len(tasks), TASKS_PER_TABLE):
        columns = tasks[start : start + TASKS_PER_TABLE]
        rows = [[title, *(f"{task} " for task in columns)]]
        rows += [[entry_name(entry), *(_cell(entry["tasks"].get(task)) for task in columns)] for entry in shown]
        blocks.append(align_columns(rows))
    if len(shown) < len(entries):
        blocks[-1].append(f"and {len(entries) - len(shown)} less important; --json lists all")
    return blocks


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None or result["importance"] is None:
        return f"{UNDEFINED} "
    return f"{result['importance']:+z.4f}{'*' if is_above_zero(result) else ' '}"
