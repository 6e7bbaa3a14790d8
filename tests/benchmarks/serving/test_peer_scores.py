"""Tests of the comparison of scores with the library."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.serving.peer_scores import compare
from ranking.errors import RankerError

EXPECTED = {"a": {"click": 0.25, "like": 0.5}, "b": {"click": 0.75, "like": 0.125}}


def response() -> list[dict[str, Any]]:
    return copy.deepcopy([{"id": item_id, "scores": EXPECTED[item_id]} for item_id in ("b", "a")])


def test_compare_accepts_small_differences() -> None:
    items = response()
    items[0]["scores"]["like"] += 9e-6
    compare("peer", items, EXPECTED)


@pytest.mark.parametrize("value", [0.12502, float("nan")])
def test_compare_names_the_score_that_differs(value: float) -> None:
    items = response()
    items[0]["scores"]["like"] = value
    with pytest.raises(RankerError, match=r"peer: item b has \S+ for like, the library computes 0.125"):
        compare("peer", items, EXPECTED)


def test_compare_rejects_missing_and_repeated_candidates() -> None:
    for items in (response()[:1], [*response(), response()[0]]):
        with pytest.raises(RankerError, match="exactly the candidates"):
            compare("peer", items, EXPECTED)


def test_compare_rejects_an_unsorted_response() -> None:
    with pytest.raises(RankerError, match="not sorted by click"):
        compare("peer", response()[::-1], EXPECTED)
