"""Measures of a regression."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ranking.metrics.bootstrap import UnitDraws
from ranking.metrics.labeled_scores import Array, LabeledScores

EPSILON = 1e-12
"""Variance of the labels, relative to their squared mean, below which they count as constant."""


def regression_measures(rows: LabeledScores, draws: UnitDraws) -> dict[str, Array]:
    """Compute the measures in the label's (transformed) unit, on the data and on each draw: [1 + B] each.

    ``r2`` is 1 − mean squared error / variance of the labels; NaN if the labels do not vary.
    """
    center = rows.labels.mean() if len(rows) else 0.0
    count, squares, sizes, label, label_squares = draws.sums(rows.units, _columns(rows, center))
    with np.errstate(divide="ignore", invalid="ignore"):  # A draw can be empty.
        variance = label_squares / count - np.square(label / count)
        constant = variance <= EPSILON * np.maximum(1.0, center**2)
        r2 = np.where(constant, np.nan, 1 - squares / count / variance)
        return {"rmse": np.sqrt(squares / count), "mae": sizes / count, "r2": r2}


def _columns(rows: LabeledScores, center: float) -> Iterator[Array]:
    """Yield the columns whose sums the measures need, one at a time, which bounds the memory.

    These are 1, squared error, absolute error, centered label, and its square. The center keeps the difference of the
    sums of labels exact for labels far from 0.
    """
    yield np.ones(len(rows))
    yield np.square(rows.labels - rows.predictions)
    yield np.abs(rows.labels - rows.predictions)
    yield rows.labels - center
    yield np.square(rows.labels - center)
