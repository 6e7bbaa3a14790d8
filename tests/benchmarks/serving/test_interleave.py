"""Tests of interleaved timing and ratios."""

from __future__ import annotations

import pytest

from benchmarks.serving.interleave import MIN_CALLS, interleave, ratios


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
