"""LightGBM on the encoded features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ranking.encoding.batch import Float32
from ranking.schema import Task

if TYPE_CHECKING:
    import lightgbm

MAX_IDS = 1_000
"""Ids above which a categorical column is left out, because trees overfit it."""
ROUNDS = 100
"""Number of trees."""
PARAMETERS: dict[str, Any] = {
    "num_leaves": 15,
    "learning_rate": 0.1,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.8,
    "deterministic": True,
    "force_col_wise": True,
    "max_bin": 63,
    "seed": 0,
    "verbosity": -1,
}
"""Fixed parameters: a baseline is not tuned."""
OBJECTIVES = {"binary": "binary", "regression": "regression"}
"""Objective of each kind of task."""


def fit_boosting(
    task: Task, matrix: Float32, categorical: Sequence[int], labels: Float32, weights: Float32
) -> Callable[[Float32], Float32]:
    """Fit a model of one task and return its prediction of rows: probabilities or numbers [rows].

    Args:
        task: the task.
        matrix: columns of the training rows [rows, columns].
        categorical: positions of the categorical columns.
        labels: labels without NaN [rows]; both classes for a binary task.
        weights: sample weights [rows].
    """
    import lightgbm

    parameters = {**PARAMETERS, "objective": OBJECTIVES[task.kind]}
    dataset = lightgbm.Dataset(matrix, labels, weight=weights, categorical_feature=list(categorical), params=parameters)
    return partial(_predict, lightgbm.train(parameters, dataset, ROUNDS))


def _predict(model: lightgbm.Booster, rows: Float32) -> Float32:
    values: Float32 = model.predict(rows).astype("float32")
    return values
