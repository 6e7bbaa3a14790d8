"""Numbers of codes and runs of equal values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ranking.metrics.labeled_scores import count_distinct, number_consecutively, starts_of_runs

CODES = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@given(CODES)
def test_consecutive_numbers_equal_those_of_unique(codes: list[int]) -> None:
    numbers, present = number_consecutively(np.array(codes), 10)
    distinct, inverse = np.unique(codes, return_inverse=True)
    assert (numbers.tolist(), present.tolist()) == (inverse.tolist(), distinct.tolist())
    assert count_distinct(np.array(codes)) == len(distinct)


def test_count_of_no_codes_is_zero() -> None:
    assert count_distinct(np.zeros(0, np.int64)) == 0


@given(CODES)
def test_runs_start_where_a_value_differs_from_the_one_before(codes: list[int]) -> None:
    column = np.sort(codes)
    starts = starts_of_runs(column, column % 2)
    assert starts.tolist() == [i for i in range(len(column)) if i == 0 or column[i] != column[i - 1]]
