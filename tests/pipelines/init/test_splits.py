from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest

from pipelines.init.splits import Splits, choose_splits

DAY = 86_400_000_000


def times(*days: float) -> np.ndarray:
    start = np.datetime64("2026-01-01", "us").astype(np.int64)
    return start + (np.array(days) * DAY).astype(np.int64)


def split(moments: np.ndarray, *labels: np.ndarray, dates: bool = False) -> Splits:
    splits = choose_splits(moments, labels, dates=dates)
    assert splits is not None
    return splits


def test_splits_of_ten_days_are_the_last_two_days() -> None:
    splits = split(times(*np.linspace(0, 9.99, 1000)))
    assert (splits.validation_from, splits.test_from) == (datetime(2026, 1, 9), datetime(2026, 1, 10))
    assert splits.shares == pytest.approx((0.8, 0.1, 0.1), abs=0.01)
    assert splits.whole_days
    assert not splits.gaps


def test_splits_within_one_day_are_times() -> None:
    splits = split(times(*np.linspace(0.1, 0.9, 1000)))
    assert not splits.whole_days
    assert splits.shares == pytest.approx((0.8, 0.1, 0.1), abs=0.01)


def test_splits_report_days_without_rows() -> None:
    assert split(times(*np.repeat([0, 1, 5, 6, 7, 8, 9, 10], 50))).gaps


def test_splits_grow_until_each_has_positives() -> None:
    moments = times(*np.linspace(0, 9.99, 1000))
    label = np.zeros(1000)
    label[[10, 700, 820]] = 1  # the last positive is before the last 10 % of the rows
    splits = split(moments, label)
    parts = np.digitize(
        moments, [np.datetime64(b, "us").astype(int) for b in (splits.validation_from, splits.test_from)]
    )
    assert [label[parts == part].sum() for part in range(3)] == [1, 1, 1]


def test_splits_of_dates_are_midnights() -> None:
    splits = split(times(*np.repeat([0, 1, 2], [10, 1, 1])), dates=True)
    assert (splits.validation_from, splits.test_from) == (datetime(2026, 1, 2), datetime(2026, 1, 3))


@pytest.mark.parametrize("days", [[0] * 30, [0] * 15 + [1] * 15])
def test_splits_need_three_different_times(days: list[int]) -> None:
    assert choose_splits(times(*days), [], dates=False) is None
    assert choose_splits(times(*days), [], dates=True) is None
