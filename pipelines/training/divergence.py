"""Explanation of a training that diverged: the most likely cause and its fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.training.labeled_batch import LabeledBatch
from ranking.schema import Schema

LARGE_LABEL = 1e3
"""Larger labels without transform give gradients with which the default learning rates diverge."""
LARGE_WEIGHT = 1e3
"""The same for sample weights, which multiply gradients."""


def explain_divergence(
    schema: Schema, tasks: Sequence[str], batch: LabeledBatch, labels: Mapping[str, Mapping[str, Any]], *, here: bool
) -> str:
    """Return cause and fix of a loss that is not finite.

    Args:
        schema: the tasks.
        tasks: names of the tasks whose loss is not finite; empty if only the total is not finite.
        batch: this rank's part of the batch.
        labels: statistics of the training labels by task, see ``LabelProfile.to_json``.
        here: whether the loss of this rank is not finite; otherwise that of another rank is.
    """
    if not here:
        return "the loss of another rank is not finite; see the error of that rank"
    if not tasks:
        return "the penalty on the gate is not finite; lower its weight in model.gate"
    return f"the loss of {', '.join(tasks)} is not finite; {_fix(schema, batch, labels)}"


def _fix(schema: Schema, batch: LabeledBatch, labels: Mapping[str, Mapping[str, Any]]) -> str:
    largest_weight = float(batch.weights.max(initial=0.0))
    if largest_weight > LARGE_WEIGHT:
        return f"sample weights in column '{schema.columns.weight}' reach {largest_weight:g}: scale them to about 1"
    for i, task in enumerate(schema.tasks):
        known = [labels.get(task.name, {}).get(key) or 0.0 for key in ("low", "high")]
        in_batch = batch.labels[:, i][~np.isnan(batch.labels[:, i])]
        largest = max(float(np.abs(in_batch).max(initial=0.0)), *map(abs, known))
        if largest > LARGE_LABEL:
            return (
                f"label '{task.label}' of task '{task.name}' reaches {largest:g} in training: set a smaller max (or a "
                'larger min) for the task, set transform = "log1p", or scale the label'
            )
    return "lower training.learning_rate or set training.clip_norm"
