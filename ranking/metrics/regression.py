"""Measures of a regression."""

from __future__ import annotations

import numpy as np

from ranking.metrics.bootstrap import UnitDraws
from ranking.metrics.labeled_scores import Array, LabeledScores


def regression_measures(rows: LabeledScores, draws: UnitDraws) -> dict[str, Array]:
    """Compute ``rmse`` and ``mae`` in the label's (transformed) unit, on the data and on each draw: [1 + B] each."""
    errors = rows.labels - rows.predictions
    count, squares, sizes = draws.sums(rows.units, (np.ones(len(rows)), np.square(errors), np.abs(errors)))
    with np.errstate(invalid="ignore"):  # A draw can be empty.
        return {"rmse": np.sqrt(squares / count), "mae": sizes / count}
