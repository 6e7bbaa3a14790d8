"""Leaves out a share of the negatives, and the rows from which nothing can be learnt then; in training only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.vocabulary import FloatArray
from ranking.schema import Task

STREAM = 1
"""Tells these draws from others of the same seed."""


def samples_negatives(seed: int, step: int, rows: int) -> FloatArray:
    """Uniform numbers from [0, 1) [rows], the same for the same seed and step."""
    return np.random.default_rng((seed, step, STREAM)).random(rows)


def downsample_negatives(examples: LabeledBatch, tasks: Sequence[Task], uniform: FloatArray) -> LabeledBatch:
    """The batch with negatives masked beyond ``Task.keep_negatives``, without the rows that have no label left.

    At least two rows stay, labelled or not, since batch norm needs two.

    Args:
        examples: a batch, left as it is.
        tasks: in the order of its labels.
        uniform: numbers from [0, 1) [rows]; a row's negatives stay where its number is below their share. One number
            for all tasks: then most rows that lose one label lose them all.
    """
    shares = np.array([task.keep_negatives for task in tasks])
    if (shares == 1).all():
        return examples
    labels = np.where((examples.labels == 0) & (uniform[:, None] >= shares), np.float32(np.nan), examples.labels)
    rows = np.flatnonzero(~np.isnan(labels).all(1))
    sampled = examples.with_labels(labels)
    return sampled.take(rows) if 2 <= len(rows) < len(labels) else sampled
