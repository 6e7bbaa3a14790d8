"""Section on the features: permutation importance by task, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.evaluation.format import describe_intervals
from pipelines.evaluation.importance.format import entry_name
from pipelines.evaluation.importance.ranked import Entry, by_all_tasks, by_task, is_above_zero
from pipelines.report.plots import Axis
from pipelines.report.quality_section import NOT_EVALUATED
from pipelines.report.run_data import RunData
from pipelines.report.section import Section

MAX_BARS = 8
"""Maximum number of features and groups per task that are drawn as bars."""
MAX_ROWS = 30
"""Maximum number of features and groups in the table."""
BAR_WIDTH = 160
"""Width of a bar plot in pixels."""
LOSSES = {"auc": "drop in AUC", "rmse": "rise in RMSE"}


def importance(run_data: RunData) -> Section:
    """Build the bars of the most important features of each task, and the table of all tasks."""
    title, evaluation = "Feature importance", run_data.evaluation
    if evaluation is None:
        return Section("importance", title, omitted=NOT_EVALUATED)
    result = evaluation.get("importance")
    if result is None:
        omitted = (
            f"The importance of the features was not measured. Run 'ranker evaluate {run_data.path} --importance', "
            "then create the report again; or train with evaluation.importance = true."
        )
        return Section("importance", title, omitted=omitted)
    entries, tasks = result["entries"], list(result["metrics"])
    shown = by_all_tasks(entries)[:MAX_ROWS]
    return Section(
        "importance",
        title,
        "How much worse the predictions become when the values of a feature are shuffled among the rows: the drop in "
        "AUC, or the rise in RMSE. A group is shuffled together: all features of one column or counter. Features that "
        "carry the same information hide each other's importance; their group shows it.",
        {
            "rows": result["rows"],
            "shuffles": result["shuffles"],
            "intervals": describe_intervals(result["intervals"]),
            "panels": [
                {"task": task, "metric": LOSSES[metric], "bars": _bars(by_task(entries, task)[:MAX_BARS], task)}
                for task, metric in result["metrics"].items()
            ],
            "tasks": tasks,
            "table": [(entry_name(entry), entry["features"], _cells(entry, tasks)) for entry in shown],
            "more": len(entries) - len(shown),
        },
    )


def _bars(entries: Sequence[Entry], task: str) -> list[dict[str, Any]]:
    """Return the name, value, and pixels of the bar and interval of each entry, on one axis."""
    results = [entry["tasks"][task] for entry in entries]
    ends = [0.0, *(end for r in results for end in (r["importance"], *(r["interval"] or ())))]
    axis = Axis(min(ends), max(max(ends), min(ends) + 1e-9), 2, BAR_WIDTH - 2)
    zero = axis(0.0)
    return [
        {
            "name": entry_name(entry),
            "value": result["importance"],
            "zero": zero,
            "left": min(zero, axis(result["importance"])),
            "width": round(abs(axis(result["importance"]) - zero), 1),
            "interval": [axis(end) for end in result["interval"]] if result["interval"] else None,
            "marked": is_above_zero(result),
        }
        for entry, result in zip(entries, results, strict=True)
    ]


def _cells(entry: Entry, tasks: Sequence[str]) -> list[dict[str, Any]]:
    unknown = {"importance": None, "interval": None}
    results = (entry["tasks"].get(task) or unknown for task in tasks)
    return [{**result, "marked": is_above_zero(result)} for result in results]
