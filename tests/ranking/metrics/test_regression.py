from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from ranking.metrics import LabeledScores, UserDraws, regression_measures

NUMBERS = st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=30)


@given(NUMBERS)
@settings(max_examples=60, deadline=None)
def test_rmse_and_mae_are_those_of_scikit_learn_in_the_data_and_in_every_draw(
    some: list[tuple[int, float, float]],
) -> None:
    users, labels, predictions = np.array(some).T
    draws = UserDraws(users.astype(np.int64), 10)
    found = regression_measures(LabeledScores(labels, predictions, draws.users), draws)
    for rmse, mae, times in zip(found["rmse"], found["mae"], draws.counts, strict=True):
        often = times[draws.users]
        y, p = np.repeat(labels, often), np.repeat(predictions, often)
        assert rmse == pytest.approx(root_mean_squared_error(y, p), abs=1e-9)
        assert mae == pytest.approx(mean_absolute_error(y, p), abs=1e-9)
