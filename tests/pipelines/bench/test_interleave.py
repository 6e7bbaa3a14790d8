"""Turns, ratios and percentiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.bench.turns import LEAST_CALLS, in_turns, percentile, ratios


def test_contenders_take_turns() -> None:
    called: list[str] = []
    found = in_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, turns=2, seconds=0.0)
    once = 1 + LEAST_CALLS
    assert called == (["a"] * once + ["b"] * once) * 2
    assert {name: len(spent) for name, spent in found.items()} == {"a": 2, "b": 2}


def test_ratios_are_taken_within_a_turn() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="argument"):
        ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1), (0.0, 1)])
def test_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= math.floor(share * len(values))
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
