from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

import pytest

from pipelines.report.formatting import axis_number, count, moment, number, percent, rate, short


@pytest.mark.parametrize(
    ("form", "value", "text"),
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
def test_numbers_are_short_and_exact_enough(form: Callable[[float], str], value: float, text: str) -> None:
    assert form(value) == text


@pytest.mark.parametrize("form", [number, count, percent, rate, short])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_undefined_is_a_dash(form: Callable[[float | None], str], value: float | None) -> None:
    assert form(value) == "–"


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        ([0, 0.2, 0.4], ["0.0", "0.2", "0.4"]),
        ([0, 500, 1000], ["0", "500", "1k"]),
        ([0.01, 0.015], ["0.010", "0.015"]),
        ([7], ["7"]),
    ],
)
def test_ticks_have_the_decimals_that_tell_them_apart(ticks: list[float], texts: list[str]) -> None:
    assert [axis_number(tick, ticks) for tick in ticks] == texts


def test_midnight_is_a_date() -> None:
    assert moment(datetime(2026, 1, 9)) == "2026-01-09"
    assert moment(datetime(2026, 1, 9, 6, 30)) == "2026-01-09 06:30"
