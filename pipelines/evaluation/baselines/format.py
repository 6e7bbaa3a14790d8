"""The baselines of an evaluation as table rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.evaluation.baselines.measure import HEADLINE_METRICS

UNDEFINED = "–"
TITLES = {"auc": "auc", "gauc_by_user_day": "gauc/day", "logloss": "logloss", "rmse": "rmse", "r2": "r²"}
"""Heading of each metric."""


def baseline_tables(baselines: Mapping[str, Any]) -> Iterator[list[list[str]]]:
    """Yield one table of the binary and one of the regression tasks: headings, then a row per task and baseline.

    Args:
        baselines: entry ``baselines`` of an evaluation, with tasks.
    """
    for metrics in HEADLINE_METRICS.values():
        head = ["task", "baseline"]
        for metric in metrics:
            head += [TITLES[metric], "model − it", "95 % interval"]
        rows = [head]
        for task, entries in baselines["tasks"].items():
            for name, entry in entries.items():
                if metrics[0] in entry:
                    rows.append([task, name, *(cell for metric in metrics for cell in _cells(entry[metric]))])
        if len(rows) > 1:
            yield rows


def paired_baseline_tables(baselines: Mapping[str, Any]) -> Iterator[list[list[str]]]:
    """Yield one table of a comparison: the deciding metric of each baseline, and the differences of A and B from it.

    Args:
        baselines: entry ``baselines`` of a comparison; empty if there are none.
    """
    a, b = (baselines.get(side, {}).get("tasks") for side in ("a", "b"))
    if not a or not b:
        return
    rows = [["task", "baseline", "metric", "value", "A − it", "95 % interval", "B − it", "95 % interval"]]
    for task, entries in a.items():
        for name, entry in entries.items():
            metric = next((metrics[0] for metrics in HEADLINE_METRICS.values() if metrics[0] in entry), None)
            if metric is not None:
                cells = (*_cells(entry[metric]), *_cells(b[task][name][metric])[1:])
                rows.append([task, name, TITLES[metric], *cells])
    if len(rows) > 1:
        yield rows


def describe_baselines(baselines: Mapping[str, Any]) -> str:
    """Return how the baselines were fitted, as one sentence."""
    rows, sampled = baselines["training_rows"], baselines["sampled_rows"]
    text = f"fitted on the {rows:,} training rows"
    return text if sampled == rows else f"{text}, linear and lightgbm on a random sample of {sampled:,}"


def describe_omitted(baselines: Mapping[str, Any]) -> list[str]:
    """Return one line per reason for which baselines are omitted, with the tasks unless it concerns all."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for task, entries in baselines["tasks"].items():
        for name, entry in entries.items():
            if "omitted" in entry:
                reasons.setdefault((name, entry["omitted"]), []).append(task)
    return [
        f"no {name}{'' if len(tasks) == len(baselines['tasks']) else ' of ' + ', '.join(tasks)}: {reason}"
        for (name, reason), tasks in reasons.items()
    ]


def _cells(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Format the baseline's value, the difference and its interval."""
    value, difference, interval = entry["baseline"], entry["difference"], entry["interval"]
    return (
        UNDEFINED if value is None else f"{value:.4f}",
        UNDEFINED if difference is None else f"{difference:+z.4f}",
        UNDEFINED if interval is None else " … ".join(f"{end:+z.4f}" for end in interval),
    )
