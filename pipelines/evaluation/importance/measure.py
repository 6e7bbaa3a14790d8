"""Measure the permutation importance of the features of a model, with paired bootstrap intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pipelines.console import Progress
from pipelines.evaluation.importance.sample import EncodedSample, donor_rows, sample_rows
from pipelines.evaluation.importance.subjects import Level, Subject, subjects_of
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import LogRange, Scorer
from pipelines.evaluation.spilled_columns import SpilledColumns
from ranking.encoding.batch import EncodedBatch, Float32
from ranking.metrics import Array, UnitDraws, auc_draws, interval, interval_units, regression_measures

MAX_ROWS = 20_000
"""Maximum number of rows, which bounds memory and time."""
MAX_SHUFFLES = 5
"""Maximum number of shuffles per feature. A sample of fewer rows is shuffled several times, up to about ``MAX_ROWS``
scored rows per feature, because each shuffle adds an error that is larger in a small sample."""
BATCH_ROWS = 4096
"""Rows per batch that the model scores."""
DECIMALS = 6
"""Decimal places of an importance; smaller ones are rounding errors."""


@torch.no_grad()
def measure_importance(
    source: Scorer, log_range: LogRange, predictions: Predictions, bootstrap: int, limit: int = MAX_ROWS
) -> dict[str, Any]:
    """Return the entry ``importance`` of an evaluation; docs/evaluation.md defines it.

    Args:
        source: the model.
        log_range: the evaluated rows.
        predictions: the predictions of these rows.
        bootstrap: number of bootstrap draws.
        limit: maximum number of rows that are used.

    Raises:
        LogError: the log cannot be read, or changed since it was evaluated.
    """
    rows = sample_rows(predictions.units, limit)
    sample = predictions.take(rows)
    draws = UnitDraws(predictions.units.take(rows), bootstrap)
    encoded = EncodedSample.read(source, log_range, predictions.files, sample.positions)
    base = _losses(source, encoded.inputs, sample, draws)
    shuffles = min(max(MAX_ROWS // len(sample), 1), MAX_SHUFFLES)
    levels: tuple[Level, ...] = ("unit", "row")
    donors = {level: [donor_rows(draws.units.codes, level, seed) for seed in range(shuffles)] for level in levels}
    units = {
        task.name: interval_units(sample.task_rows(i, draws, sample.has_label(i)), binary=task.kind == "binary")
        for i, task in enumerate(sample.tasks)
    }
    entries = []
    subjects = subjects_of(source.schema)
    progress = Progress("importance: shuffling", "features and groups", len(subjects))
    for subject in subjects:
        shuffled = [_losses(source, encoded.shuffled(subject, d), sample, draws) for d in donors[subject.level]]
        entries.append(_entry(subject, base, shuffled, units))
        progress.advance(1)
    progress.close()
    return {
        "rows": len(sample),
        "shuffles": shuffles,
        "intervals": draws.to_json(),
        "metrics": {task.name: "auc" if task.kind == "binary" else "rmse" for task in sample.tasks},
        "entries": entries,
    }


def _losses(source: Scorer, inputs: EncodedBatch, sample: Predictions, draws: UnitDraws) -> dict[str, Array]:
    """Return −AUC or the RMSE of each task, in the data and in each draw [1 + B]; NaN where undefined."""
    scored = replace(sample, outputs=SpilledColumns.of(_outputs(source, inputs)))
    losses = {}
    for i, task in enumerate(sample.tasks):
        has_label = sample.has_label(i)
        if not has_label.any():
            losses[task.name] = np.full(len(draws.counts), np.nan)
            continue
        labeled = scored.task_rows(i, draws, has_label)
        losses[task.name] = (
            -auc_draws(labeled, draws) if task.kind == "binary" else regression_measures(labeled, draws)["rmse"]
        )
    return losses


def _outputs(source: Scorer, inputs: EncodedBatch) -> Float32:
    """Return the uncalibrated outputs [rows, tasks]."""
    batches = (np.arange(start, min(start + BATCH_ROWS, len(inputs))) for start in range(0, len(inputs), BATCH_ROWS))
    return np.concatenate([source.forward(inputs.take(rows))[0].float().numpy() for rows in batches])


def _entry(
    subject: Subject, base: dict[str, Array], shuffled: list[dict[str, Array]], units: dict[str, int]
) -> dict[str, Any]:
    """Return the result of one subject: per task, the mean rise of the loss over the shuffles.

    Args:
        subject: the features that were shuffled.
        base: losses of each task without a shuffle [1 + B].
        shuffled: losses of each task in each shuffle [1 + B].
        units: number of units that the intervals of each task rest on.
    """
    tasks = {}
    for task, losses in base.items():
        rises = np.round(np.mean([result[task] for result in shuffled], axis=0) - losses, DECIMALS)
        bounds = interval(rises, units[task])
        tasks[task] = {
            "importance": None if np.isnan(rises[0]) else float(rises[0]),
            "interval": None if bounds is None else list(bounds),
        }
    return {**subject.to_json(), "tasks": tasks}
