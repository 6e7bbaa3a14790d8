"""Missing features of candidates."""

from __future__ import annotations

import numpy as np
import pytest

from service.engine.request_encoder import MissingFeatures
from tests.support.missing_features import by_candidate

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def missing() -> MissingFeatures:
    """All candidates lack b, the first lacks c, the third lacks a and c; d and e are known."""
    items = np.array([[True, False], [False, False], [True, True]])
    return MissingFeatures(NAMES, [1, 3, 4], [2, 0], np.array([True, False, False]), items)


def test_patterns_names_are_in_schema_order(missing: MissingFeatures) -> None:
    assert by_candidate(missing) == [["b", "c"], ["b"], ["a", "b", "c"]]


def test_positions_maps_features_to_candidates(missing: MissingFeatures) -> None:
    positions = {name: rows.tolist() for name, rows in missing.positions().items()}
    assert positions == {"a": [2], "b": [0, 1, 2], "c": [0, 2]}


def test_count_covers_shared_and_item_features(missing: MissingFeatures) -> None:
    assert missing.count == 6
    assert missing.take(np.array([1])).count == 1


def test_take_selects_candidates_in_given_order(missing: MissingFeatures) -> None:
    assert by_candidate(missing.take(np.array([2, 0]))) == [["a", "b", "c"], ["b", "c"]]


def test_patterns_only_shared_features_missing(missing: MissingFeatures) -> None:
    assert by_candidate(missing.take(np.array([1, 1]))) == [["b"], ["b"]]


def test_missing_features_of_no_candidates_are_empty(missing: MissingFeatures) -> None:
    empty = missing.take(np.array([], np.int64))
    assert (empty.count, by_candidate(empty), empty.positions()) == (0, [], {})
