"""Tests of interleaved timing, ratios and percentiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.bench.interleave import MIN_CALLS, interleave, percentile, ratios


def test_interleave_runs_contenders_in_turns() -> None:
    calls: list[str] = []
    medians = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, turns=2, seconds=0.0)
    calls_per_turn = 1 + MIN_CALLS
    assert calls == (["a"] * calls_per_turn + ["b"] * calls_per_turn) * 2
    assert {name: len(values) for name, values in medians.items()} == {"a": 2, "b": 2}


def test_ratios_divides_turn_by_turn() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="argument"):
        ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1), (0.0, 1)])
def test_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentile_is_a_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    result = percentile(values, share)
    assert result in values
    assert sum(value <= result for value in values) >= math.floor(share * len(values))
    assert sum(value < result for value in values) < share * len(values) + 1e-9


def test_percentile_without_values_raises() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
