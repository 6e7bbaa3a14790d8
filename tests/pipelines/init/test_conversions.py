from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from pipelines.init.conversions import (
    SPLIT_DAYS,
    day_numbers,
    finite_numbers,
    random_split_times,
    reordered_times,
    split_text,
    text_times,
    two_values,
    unix_times,
    without_value,
)


@pytest.mark.parametrize(
    ("unit", "number"), [("s", 1_767_225_600), ("ms", 1_767_225_600_000), ("us", 1_767_225_600_000_000)]
)
def test_unix_times_become_timestamps_in_utc(unit: str, number: int) -> None:
    times = unix_times(unit)(pa.array([number, None, 5]))
    assert times.to_pylist() == [datetime(2026, 1, 1, tzinfo=UTC), None, None]


def test_unix_times_with_fractions_keep_them() -> None:
    times = unix_times("s")(pa.array([1_767_225_600.25, float("nan")]))
    assert times.to_pylist() == [datetime(2026, 1, 1, 0, 0, 0, 250_000, UTC), None]


def test_text_times_that_cannot_be_read_are_null() -> None:
    times = text_times(zoned=False)(pa.array(["2026-01-01 10:00:00", "soon", None]))
    assert times.to_pylist() == [datetime(2026, 1, 1, 10), None, None]
    zoned = text_times(zoned=True)(pa.array(["2026-01-01T10:00:00+02:00", "2026-01-01T10:00:00"]))
    assert zoned.to_pylist() == [datetime(2026, 1, 1, 8, tzinfo=UTC), None]


def test_reordered_times_that_cannot_be_read_are_null() -> None:
    texts = ["31.12.2026", " 1.2.2026 9:05", "1.2.2026 10:00:07", "31.2.2026", "1.2.26", "1/2/2026", "1.2.2026 x", None]
    times = [datetime(2026, 12, 31), datetime(2026, 2, 1, 9, 5), datetime(2026, 2, 1, 10, 0, 7)]
    assert reordered_times(".", day_first=True)(pa.array(texts)).to_pylist() == [*times, *[None] * 5]
    month_first = reordered_times("/", day_first=False)
    assert month_first(pa.array(["2/13/2026", "13/2/2026"], pa.large_string())).to_pylist() == [
        *(datetime(2026, 2, 13), None),
    ]


def test_day_numbers_become_dates() -> None:
    assert day_numbers(pa.array([20260109, 20261399, 7, None])).to_pylist() == [date(2026, 1, 9), None, None, None]


def test_two_values_become_0_and_1() -> None:
    assert two_values("<=50K", ">50K")(pa.array([">50K", "<=50K", "x", None])).to_pylist() == [1, 0, None, None]
    prices = [Decimal("2.00"), Decimal("-0.07"), Decimal("3.00"), None]
    assert two_values(prices[1], prices[0])(pa.array(prices, pa.decimal128(12, 2))).to_pylist() == [1, 0, None, None]


def test_split_text_drops_spaces_and_empty_parts() -> None:
    lists = split_text("|")(pa.array(["a | b", "", "c|", None]))
    assert lists.to_pylist() == [["a", "b"], [], ["c"], None]


def test_numbers_that_stand_for_unknown_become_null() -> None:
    assert without_value(-124)(pa.array([1, -124, None])).to_pylist() == [1.0, None, None]
    assert finite_numbers(pa.array([1.0, float("nan"), float("inf")])).to_pylist() == [1.0, None, None]


def test_random_split_times_divide_every_ten_rows_into_three_days() -> None:
    positions = np.arange(10_000)
    times = random_split_times(positions)
    days = times.to_numpy(zero_copy_only=False).astype("datetime64[D]")
    assert len(set(times.to_pylist())) == 10_000
    assert np.sum(days == np.datetime64(SPLIT_DAYS[1])) == np.sum(days == np.datetime64(SPLIT_DAYS[2])) == 1000
    first = days.reshape(-1, 10)
    assert np.all((first == np.datetime64(SPLIT_DAYS[1])).sum(axis=1) == 1)
    within = np.argmax(first == np.datetime64(SPLIT_DAYS[2]), axis=1)
    assert np.bincount(within, minlength=10).min() > 60  # uniform: about 100 each


def test_random_split_times_depend_on_the_position_only() -> None:
    assert random_split_times(np.arange(5, 9)) == random_split_times(np.arange(20))[5:9]
