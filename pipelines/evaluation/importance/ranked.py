"""Order of the features and groups of an importance in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
"""A feature or group with its results: an element of ``entries``."""


def is_above_zero(result: Mapping[str, Any]) -> bool:
    """Return whether the interval of an importance lies above 0: without the feature the model is worse."""
    bounds = result["interval"]
    return bounds is not None and bounds[0] > 0


def by_task(entries: Sequence[Entry], task: str) -> list[Entry]:
    """Return the entries with an importance for a task, the largest first."""
    known = [e for e in entries if task in e["tasks"] and e["tasks"][task]["importance"] is not None]
    return sorted(known, key=lambda e: -e["tasks"][task]["importance"])


def by_all_tasks(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries by the sum over the tasks of their share of the task's largest importance.

    Shares whose interval contains 0 only decide between entries without others.
    """
    largest: dict[str, float] = {}
    for entry in entries:
        for task, result in entry["tasks"].items():
            largest[task] = max(largest.get(task, 0.0), result["importance"] or 0.0)

    def key(entry: Entry) -> tuple[float, float]:
        shares = [
            (is_above_zero(result), max(result["importance"] or 0.0, 0.0) / (largest[task] or 1.0))
            for task, result in entry["tasks"].items()
        ]
        return -sum(share for clear, share in shares if clear), -sum(share for _, share in shares)

    return sorted(entries, key=key)
