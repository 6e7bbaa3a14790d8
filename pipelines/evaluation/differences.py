"""Metrics of two models under the same bootstrap draws, and their paired difference."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from pipelines.config.config import EvaluationConfig
from ranking.metrics import (
    BINARY_MEASURES,
    Array,
    LabeledScores,
    UnitDraws,
    binary_measures,
    interval,
    regression_measures,
)
from ranking.schema import Task

UPWARD_BIASED = ("calibration_error",)
"""Metrics that sampling noise can only raise; their intervals are mirrored at the value."""
DECIMALS = 6
"""Decimal places of differences; smaller ones are rounding errors, such as between a float32 run and its bundle."""
LOWER_IS_BETTER = {
    **dict.fromkeys(("auc", "gauc", "gauc_by_user_day", "ndcg", "r2"), False),
    **dict.fromkeys(("logloss", "normalised_entropy", "rmse", "mae"), True),
}
"""Metrics that rank two models.

``calibration`` does not, because its best value is 1. ``calibration_error`` does not, because noise raises it: with 30
positives, its interval excludes 0 for 8 % of the pairs of equally good models.
"""


def bootstrap_metrics(
    task: Task,
    rows: LabeledScores,
    draws: UnitDraws,
    settings: EvaluationConfig,
    only: Collection[str] = BINARY_MEASURES,
) -> dict[str, Array]:
    """Return each metric of the task's kind in the data and in each bootstrap draw [1 + B].

    Args:
        task: the task.
        rows: its rows.
        draws: bootstrap draws of the units of all rows.
        settings: evaluation settings.
        only: metrics of a binary task; those of a regression cost little.
    """
    if task.kind == "binary":
        return binary_measures(rows, draws, settings.ndcg_at, only)
    return regression_measures(rows, draws)


def metric_difference(metric: str, a: Array, b: Array, units: int) -> dict[str, Any]:
    """Return the difference B − A of a metric with its interval.

    Args:
        metric: name of the metric.
        a: values of A in the data and in each draw [1 + B].
        b: values of B under the same draws [1 + B].
        units: number of units that the metric rests on, see ``interval_units``.
    """
    differences = np.round(b - a, DECIMALS)
    bounds = interval(differences, units, reflected=metric in UPWARD_BIASED)
    better = None
    if bounds is not None and not bounds[0] <= 0 <= bounds[1] and metric in LOWER_IS_BETTER:
        better = "b" if (bounds[1] < 0) == LOWER_IS_BETTER[metric] else "a"
    values = {"a": a[0], "b": b[0], "difference": differences[0]}
    return {
        **{name: None if np.isnan(value) else float(value) for name, value in values.items()},
        "interval": None if bounds is None else list(bounds),
        "better": better,
    }
