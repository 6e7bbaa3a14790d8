"""Measures of regressions, compared with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from ranking.metrics import regression_measures
from tests.support.unit_draws import draw_users, labeled_scores

ROWS = st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=30)


@given(ROWS)
def test_rmse_and_mae_of_data_and_every_draw_equal_scikit_learn(sampled_rows: list[tuple[int, float, float]]) -> None:
    users, labels, predictions = np.array(sampled_rows).T
    draws = draw_users(users, 10)
    measures = regression_measures(labeled_scores(labels, predictions, draws), draws)
    for rmse, mae, times in zip(measures["rmse"], measures["mae"], draws.counts, strict=True):
        repeats = times[draws.codes]
        y, p = np.repeat(labels, repeats), np.repeat(predictions, repeats)
        assert rmse == pytest.approx(root_mean_squared_error(y, p), abs=1e-9)
        assert mae == pytest.approx(mean_absolute_error(y, p), abs=1e-9)
