"""Tests of the verdicts on claims."""

from __future__ import annotations

import pytest

from benchmarks.papers.verdicts import all_of, any_of, is_lower, is_not_higher, verdict


@pytest.mark.parametrize(
    ("ours", "theirs", "lower", "not_higher"),
    [
        ([1.0, 1.1, 0.9], [2.0, 2.1, 2.0], "held", "held"),
        ([2.0, 2.1, 2.0], [1.0, 1.1, 0.9], "failed", "failed"),
        ([1.0, 3.0, 2.0], [2.0, 2.0, 2.1], "not decided", "not decided"),
        ([2.0, 2.0], [2.0, 2.0], "failed", "held"),
    ],
)
def test_paired_values_are_lower_only_beyond_their_interval(
    ours: list[float], theirs: list[float], lower: str, not_higher: str
) -> None:
    assert is_lower(ours, theirs) == lower
    assert is_not_higher(ours, theirs) == not_higher


def test_several_verdicts_combine_as_three_valued_logic() -> None:
    assert all_of(["held", "held"]) == "held"
    assert all_of(["held", "not decided"]) == "not decided"
    assert all_of(["not decided", "failed"]) == "failed"
    assert any_of(["failed", "failed"]) == "failed"
    assert any_of(["failed", "not decided"]) == "not decided"
    assert any_of(["not decided", "held"]) == "held"
    assert (verdict(True), verdict(False)) == ("held", "failed")
