"""Downsample negatives, and drop rows that have no label left. Applies to training batches only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.vocabulary import FloatArray
from ranking.schema import Task

STREAM = 1
"""Identifies the random stream of these draws among the streams of one seed."""


def draw_uniforms(seed: int, step: int, rows: int) -> FloatArray:
    """Draw uniform numbers from [0, 1) [rows] that depend only on the seed and the step."""
    return np.random.default_rng((seed, step, STREAM)).random(rows)


def downsample_negatives(batch: LabeledBatch, tasks: Sequence[Task], uniforms: FloatArray) -> LabeledBatch:
    """Mask all but a fraction ``Task.keep_negatives`` of the negatives, and drop rows without a label.

    If fewer than two rows would remain, all rows are kept, because batch norm needs two.

    Args:
        batch: a training batch; not modified.
        tasks: the tasks, in the order of the labels.
        uniforms: numbers from [0, 1) [rows]. A row's negatives are kept where its number is below the task's fraction.
            All tasks share one number per row, so that most rows that lose one label lose all of them.
    """
    fractions = np.array([task.keep_negatives for task in tasks])
    if (fractions == 1).all():
        return batch
    labels = np.where((batch.labels == 0) & (uniforms[:, None] >= fractions), np.float32(np.nan), batch.labels)
    rows = np.flatnonzero(~np.isnan(labels).all(1))
    sampled = batch.with_labels(labels)
    return sampled.take(rows) if 2 <= len(rows) < len(labels) else sampled
