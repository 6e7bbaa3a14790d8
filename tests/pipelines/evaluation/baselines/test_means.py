"""Means by id: as a group-by gives them, in bounded batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.baselines import means
from pipelines.evaluation.baselines.means import PRIOR_ROWS, MeansById


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.0, 1.0, np.nan]), st.floats(0.1, 3)), max_size=60),
    st.integers(1, 9),
)
def test_means_equal_those_of_a_group_by(rows: list[tuple[int, float, float]], batch: int) -> None:
    ids, labels, weights = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.empty(0),) * 3
    overall, table = 0.3, MeansById(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(means, "MIN_BUFFERED_ROWS", 4)
        for start in range(0, len(rows), batch):
            part = slice(start, start + batch)
            table.add(
                ids[part].astype(np.int64), labels[part, None].astype(np.float32), weights[part].astype(np.float32)
            )
    for number in range(8):
        chosen = (ids == number) & ~np.isnan(labels) if number else np.zeros(len(rows), bool)  # 0 is a null
        total = weights[chosen].sum() + PRIOR_ROWS
        expected = ((labels[chosen] * weights[chosen]).sum() + PRIOR_ROWS * overall) / total
        assert table.predict(np.array([number]), 0, overall)[0] == pytest.approx(expected, rel=1e-5)


def test_means_of_tasks_are_separate() -> None:
    table = MeansById(2)
    table.add(np.array([5, 5]), np.array([[1, 10], [0, np.nan]], np.float32), np.ones(2, np.float32))
    assert len(table) == 1
    assert table.predict(np.array([5]), 0, 0.5)[0] == pytest.approx((1 + PRIOR_ROWS * 0.5) / (2 + PRIOR_ROWS))
    assert table.predict(np.array([5]), 1, 4.0)[0] == pytest.approx((10 + PRIOR_ROWS * 4) / (1 + PRIOR_ROWS))
