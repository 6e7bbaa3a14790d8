"""Configurations with and without counters, and metrics of predictions that are paired and averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.config.config import Config
from pipelines.evaluation.differences import bootstrap_metrics, metric_difference
from pipelines.evaluation.predictions import Predictions
from ranking.metrics import Array, UnitDraws

METRICS = {"binary": ("auc", "gauc", "gauc_by_user_day", "logloss"), "regression": ("rmse",)}
"""Reported metrics of each kind of task."""

Metrics = Mapping[str, Mapping[str, Array]]
"""Task → metric → value in the data and in each bootstrap draw [1 + B]."""


def without_counters(config: Config) -> Config:
    """Return the configuration without counters and histories."""
    counter_features = {feature.name for feature in config.training_schema.counter_features}
    features = tuple(feature for feature in config.features if feature.name not in counter_features)
    return config.model_copy(update={"counters": (), "histories": (), "features": features})


def by_day(config: Config) -> Config:
    """Return the configuration with counters and histories that know the labels of earlier days only."""
    update = {"as_of": None, "delay": None}
    counters = tuple(entry.model_copy(update=update) for entry in config.counters)
    histories = tuple(entry.model_copy(update=update) for entry in config.histories)
    return config.model_copy(update={"counters": counters, "histories": histories})


def measured(predictions: Predictions, draws: UnitDraws, config: Config) -> Metrics:
    """Return the metrics of each task under the same draws."""
    metrics = {}
    for i, task in enumerate(predictions.tasks):
        rows = predictions.task_rows(i, draws, predictions.has_label(i))
        metrics[task.name] = bootstrap_metrics(task, rows, draws, config.evaluation)
    return metrics


def mean(parts: Sequence[Metrics]) -> Metrics:
    """Return the mean of metrics over seeds, in the data and in each draw."""
    return {
        task: {metric: np.mean([part[task][metric] for part in parts], axis=0) for metric in metrics}
        for task, metrics in parts[0].items()
    }


def table(results: Mapping[str, Metrics], config: Config, units: int, differences: Sequence[tuple[str, str]]) -> str:
    """Return the means over seeds as a Markdown table.

    Args:
        results: metrics of each model, in the order of the columns.
        config: configuration with the tasks.
        units: number of units that the draws draw.
        differences: pairs of models (A, B) whose paired difference B − A has a column.
    """
    headers = [*results, *(f"{b} − {a}" for a, b in differences)]
    lines = [f"| task | metric | {' | '.join(headers)} |", f"|---|---|{'---|' * len(headers)}"]
    for task in config.tasks:
        for metric in METRICS[task.kind]:
            if any(metric not in metrics[task.name] for metrics in results.values()):
                continue
            values = {model: metrics[task.name][metric] for model, metrics in results.items()}
            cells = [f"{value[0]:.4f}" for value in values.values()]
            cells += [_difference(metric, values[a], values[b], units) for a, b in differences]
            lines.append(f"| {task.name} | {metric} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _difference(metric: str, a: Array, b: Array, units: int) -> str:
    """Return the difference B − A with its interval."""
    difference = metric_difference(metric, a, b, units)
    low, high = difference["interval"] or (float("nan"), float("nan"))
    return f"{difference['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"
