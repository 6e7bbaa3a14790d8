from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

import pytest

from pipelines.report.formatting import axis_label, count, number, percent, rate, short, timestamp


@pytest.mark.parametrize(
    ("number_format", "value", "text"),
    [
        (number, 0.71234567, "0.7123"),
        (count, 131651, "131,651"),
        (percent, 0.345, "34%"),
        (percent, 0.0345, "3.5%"),
        (percent, 0.00345, "0.34%"),
        (percent, 0, "0%"),
        (rate, 0.4507, "45.1%"),
        (rate, 0.0007618, "0.0762%"),
        (rate, 1.0, "100%"),
        (short, 419_968, "420 k"),
        (short, 999_900, "1 M"),
        (short, 1_234_567, "1.23 M"),
        (short, 950, "950"),
    ],
)
def test_number_format_of_a_value_returns_its_text(
    number_format: Callable[[float], str], value: float, text: str
) -> None:
    assert number_format(value) == text


@pytest.mark.parametrize("number_format", [number, count, percent, rate, short])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_number_format_of_an_undefined_value_is_a_dash(
    number_format: Callable[[float | None], str], value: float | None
) -> None:
    assert number_format(value) == "–"


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        ([0, 0.2, 0.4], ["0.0", "0.2", "0.4"]),
        ([0, 500, 1000], ["0", "500", "1k"]),
        ([0.01, 0.015], ["0.010", "0.015"]),
        ([7], ["7"]),
    ],
)
def test_axis_label_has_enough_decimals_to_tell_ticks_apart(ticks: list[float], texts: list[str]) -> None:
    assert [axis_label(tick, ticks) for tick in ticks] == texts


def test_timestamp_at_midnight_is_a_date() -> None:
    assert timestamp(datetime(2026, 1, 9)) == "2026-01-09"
    assert timestamp(datetime(2026, 1, 9, 6, 30)) == "2026-01-09 06:30"
