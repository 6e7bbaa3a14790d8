"""Which candidates lack which features."""

from __future__ import annotations

import numpy as np
import pytest

from service.engine.missing import Missing
from tests.support.missing_features import by_candidate

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def missing() -> Missing:
    """b of all, c of the first, a and c of the third; d and e are not."""
    items = np.array([[True, False], [False, False], [True, True]])
    return Missing(NAMES, [1, 3, 4], [2, 0], np.array([True, False, False]), items)


def test_names_stand_in_order_of_declaration(missing: Missing) -> None:
    assert by_candidate(missing) == [["b", "c"], ["b"], ["a", "b", "c"]]


def test_positions_of_those_who_lack_a_feature(missing: Missing) -> None:
    found = {name: at.tolist() for name, at in missing.positions().items()}
    assert found == {"a": [2], "b": [0, 1, 2], "c": [0, 2]}


def test_what_is_counted(missing: Missing) -> None:
    assert missing.count == 6
    assert missing.take(np.array([1])).count == 1


def test_some_in_another_order(missing: Missing) -> None:
    assert by_candidate(missing.take(np.array([2, 0]))) == [["a", "b", "c"], ["b", "c"]]


def test_candidates_that_lack_only_what_they_share(missing: Missing) -> None:
    assert by_candidate(missing.take(np.array([1, 1]))) == [["b"], ["b"]]


def test_nobody_lacks_nothing(missing: Missing) -> None:
    nobody = missing.take(np.array([], np.int64))
    assert (nobody.count, by_candidate(nobody), nobody.positions()) == (0, [], {})
