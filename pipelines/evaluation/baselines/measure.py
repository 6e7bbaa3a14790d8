"""Metrics of the baselines, and the paired differences of the model from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.config.config import EvaluationConfig
from pipelines.evaluation.baselines.fit import Baselines
from pipelines.evaluation.differences import bootstrap_metrics, metric_difference
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.threads import results_of, thread_pool
from ranking.metrics import UnitDraws, interval_units
from ranking.schema import Task

HEADLINE_METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": ("auc", "gauc_by_user_day", "logloss"),
    "regression": ("rmse", "r2"),
}
"""Metrics of the baselines by kind of task. The first one decides whether the model beats a baseline."""


def measure_baselines(
    predictions: Predictions, baselines: Baselines | str, draws: UnitDraws, settings: EvaluationConfig
) -> dict[str, Any]:
    """Return the entry ``baselines`` of an evaluation.

    Args:
        predictions: predictions of the model, and those of the baselines if there are any.
        baselines: the fitted baselines, or why there are none.
        draws: bootstrap draws of the units of all rows.
        settings: evaluation settings.

    Returns:
        ``omitted`` if there are none; otherwise ``training_rows``, ``sampled_rows`` and ``tasks``: for each task and
        baseline either ``omitted`` (the reason) or the headline metrics. A metric has ``model``, ``baseline``,
        ``difference`` (model − baseline), its ``interval`` and ``better`` ("model" or "baseline"; None if the interval
        contains 0).
    """
    if isinstance(baselines, str):
        return {"omitted": baselines}
    positions = {task.name: i for i, task in enumerate(baselines.tasks)}
    with thread_pool(len(predictions)) as pool:
        tasks = {
            task.name: pool.submit(_measure_task, predictions, i, positions[task.name], baselines, draws, settings)
            for i, task in enumerate(predictions.tasks)
            if task.name in positions
        }
    return {"training_rows": baselines.rows, "sampled_rows": baselines.sampled_rows, "tasks": results_of(tasks)}


def _measure_task(
    predictions: Predictions,
    task: int,
    baseline_task: int,
    baselines: Baselines,
    draws: UnitDraws,
    settings: EvaluationConfig,
) -> dict[str, Any]:
    definition: Task = predictions.tasks[task]
    has_label = predictions.has_label(task)
    if not has_label.any():
        return {}
    assert predictions.baselines is not None
    rows = predictions.task_rows(task, draws, has_label)
    shown = HEADLINE_METRICS[definition.kind]
    values = bootstrap_metrics(definition, rows, draws, settings, shown)
    units = interval_units(rows, binary=definition.kind == "binary")
    result: dict[str, Any] = {}
    for position, name in enumerate(baselines.names):
        if (name, definition.name) in baselines.omitted:
            result[name] = {"omitted": baselines.omitted[name, definition.name]}
            continue
        outputs = predictions.baselines.column(position, baseline_task)[has_label].astype(np.float64)
        others = bootstrap_metrics(definition, replace(rows, predictions=outputs), draws, settings, shown)
        metrics = {}
        for metric in shown:
            entry = metric_difference(metric, others[metric], values[metric], units)
            better = {"a": "baseline", "b": "model", None: None}[entry["better"]]
            metrics[metric] = {
                "model": entry["b"],
                "baseline": entry["a"],
                "difference": entry["difference"],
                "interval": entry["interval"],
                "better": better,
            }
        result[name] = metrics
    return result
