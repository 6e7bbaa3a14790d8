"""Logistic regression (binary tasks) and ridge regression on the encoded features."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ranking.encoding.batch import EncodedBatch, Float32
from ranking.encoding.encoder import Encoder
from ranking.metrics import Array
from ranking.schema import Task

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression, Ridge

MAX_ITERATIONS = 50
"""Iterations of the solver, which bound the time; more gain some tasks of KuaiRand and cost others."""
RIDGE_PENALTY = 10.0
"""L2 penalty of the ridge regression."""
INVERSE_PENALTY = 0.1
"""Inverse L2 penalty of the logistic regression, whose columns are mostly rare ids."""


class LinearColumns:
    """One 0/1 column per id of each categorical feature, mean counts for lists, and the standardized numbers.

    Args:
        encoder: encoder of the rows.
        sample: rows that give the mean and standard deviation of the numbers.
    """

    def __init__(self, encoder: Encoder, sample: EncodedBatch) -> None:
        schema = encoder.schema
        sizes = {name: mapping.size for name, mapping in encoder.id_mappings.items()}
        self._id_sizes = np.array([sizes[feature.table] for feature in schema.categoricals], np.int64)
        self._bag_sizes = [sizes[bag.table] for bag in schema.bags]
        self._mean: Array = sample.dense.mean(0, dtype=np.float64)
        self._deviation: Array = sample.dense.std(0, dtype=np.float64)

    def matrix(self, inputs: EncodedBatch) -> sparse.csr_matrix:
        """Return the columns of encoded rows [rows, columns]."""
        rows, width = len(inputs), inputs.ids.shape[1]
        parts = []
        if width:
            columns = inputs.ids + np.cumsum(self._id_sizes) - self._id_sizes
            starts = np.arange(0, rows * width + 1, width)
            shape = (rows, int(self._id_sizes.sum()))
            parts.append(sparse.csr_matrix((np.ones(rows * width), columns.ravel(), starts), shape))
        for bag, size in zip(inputs.bags, self._bag_sizes, strict=True):
            values = np.repeat(1 / np.maximum(bag.lengths, 1), bag.lengths)
            starts = np.append(0, np.cumsum(bag.lengths))
            parts.append(sparse.csr_matrix((values, bag.values, starts), (rows, size)))
        if inputs.dense.shape[1]:
            scaled = (inputs.dense - self._mean) / np.where(self._deviation > 0, self._deviation, 1)
            parts.append(sparse.csr_matrix(scaled))
        return sparse.hstack(parts, format="csr")


def fit_linear(
    task: Task, matrix: sparse.csr_matrix, labels: Float32, weights: Float32
) -> Callable[[sparse.csr_matrix], Float32]:
    """Fit a model of one task and return its prediction of rows: probabilities or numbers [rows].

    Args:
        task: the task.
        matrix: columns of the training rows [rows, columns].
        labels: labels without NaN [rows]; both classes for a binary task.
        weights: sample weights [rows].
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if task.kind == "binary":
            classifier = LogisticRegression(C=INVERSE_PENALTY, max_iter=MAX_ITERATIONS)
            classifier.fit(matrix, labels, weights)
            return partial(_predict_probability, classifier)
        ridge = Ridge(alpha=RIDGE_PENALTY, solver="sparse_cg", max_iter=MAX_ITERATIONS)
        ridge.fit(matrix, labels, weights)
    return partial(_predict_number, ridge)


def _predict_probability(classifier: LogisticRegression, rows: sparse.csr_matrix) -> Float32:
    probabilities: Float32 = classifier.predict_proba(rows)[:, 1].astype(np.float32)
    return probabilities


def _predict_number(ridge: Ridge, rows: sparse.csr_matrix) -> Float32:
    numbers: Float32 = ridge.predict(rows).astype(np.float32)
    return numbers
