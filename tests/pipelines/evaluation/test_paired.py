"""Tests of means and paired intervals."""

from __future__ import annotations

import pytest
from scipy import stats

from pipelines.evaluation.paired import mean_and_error, paired_interval, plus_minus


def test_paired_interval_is_that_of_a_paired_t_test() -> None:
    ours, theirs = [0.3, 0.5, 0.9, 0.4], [0.2, 0.1, 0.8, 0.5]
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    mean, half_width = paired_interval(ours, theirs)
    assert (mean - half_width, mean + half_width) == pytest.approx((interval.low, interval.high))


def test_paired_interval_needs_pairs() -> None:
    with pytest.raises(ValueError, match="at least two seeds"):
        paired_interval([1.0], [2.0])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        paired_interval([1.0, 2.0], [2.0])


def test_mean_and_error_are_formatted_with_the_same_digits() -> None:
    assert plus_minus(*mean_and_error([1.0, 2.0, 3.0]), 2) == "2.00 ± 0.58"
    assert plus_minus(*mean_and_error([4.0]), 1) == "4.0 ± 0.0"
