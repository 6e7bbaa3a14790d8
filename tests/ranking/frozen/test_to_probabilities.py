"""From what towers give to what users see, for outputs of any size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.frozen.calibration import to_probabilities
from ranking.schema import Task

CLICK, LIKE = Task(name="click", kind="binary"), Task(name="like", kind="binary")
WATCH = Task(name="watch", kind="regression", transform="log1p")
TASKS = [CLICK, WATCH, LIKE]

pytestmark = pytest.mark.filterwarnings("error")
"""A service's log is no place for a warning that a probability is 0."""

of_both_types = pytest.mark.parametrize("kind", [np.float32, np.float64])


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def test_scores_are_probabilities_and_numbers() -> None:
    outputs = np.array([[0.0, -3.0, 100.0], [-100.0, 7.5, 1.0]])
    expected = [[0.5, -3.0, 1.0], [math.exp(-100.0), 7.5, 0.7310585786300049]]
    np.testing.assert_allclose(to_probabilities(outputs, TASKS), expected, rtol=1e-15)


@given(st.floats(-700.0, 700.0))
@settings(deadline=None)
def test_a_probability_is_that_of_its_logit_however_small(logit: float) -> None:
    (found,) = to_probabilities(np.array([[logit]]), [CLICK])[0]
    assert found == pytest.approx(sigmoid(logit), rel=1e-14, abs=0.0)


@of_both_types
def test_of_the_largest_logits_it_is_0_or_1_and_nothing_is_warned_of(kind: type[np.floating[Any]]) -> None:
    with np.errstate(all="warn", under="ignore"):
        for size in (1e3, float(np.finfo(kind).max), math.inf):
            outputs = np.array([[size, size, -size], [-size, -size, size]], kind)
            assert to_probabilities(outputs, TASKS).tolist() == [[1.0, size, 0.0], [0.0, -size, 1.0]]


@of_both_types
def test_they_are_float64_whatever_the_outputs_are(kind: type[np.floating[Any]]) -> None:
    found = to_probabilities(np.array([[0.1, 0.1, 0.1]], kind), TASKS)
    assert found.dtype == np.float64
    assert found[0, 1] == float(kind(0.1))
    assert found[0, 0] == found[0, 2] == pytest.approx(sigmoid(float(kind(0.1))), rel=1e-15)


@given(st.permutations(range(3)))
@settings(deadline=None)
def test_columns_are_of_the_tasks_in_their_order(order: list[int]) -> None:
    outputs = np.array([[2.0, -3.0, 0.5], [-1.0, 7.5, 1.0]])
    found = to_probabilities(outputs[:, order], [TASKS[i] for i in order])
    np.testing.assert_array_equal(found, to_probabilities(outputs, TASKS)[:, order])


def test_a_larger_logit_is_no_smaller_probability() -> None:
    found = to_probabilities(np.linspace(-800.0, 800.0, 40_001)[:, None], [CLICK])[:, 0]
    assert (np.diff(found) >= 0).all()
    assert (found[0], found[20_000], found[-1]) == (0.0, 0.5, 1.0)


@of_both_types
def test_the_outputs_stay_as_they_are(kind: type[np.floating[Any]]) -> None:
    outputs = np.ones((2, 3), kind)
    to_probabilities(outputs, TASKS)
    assert outputs.tolist() == [[1.0] * 3] * 2


def test_nan_is_never_hidden() -> None:
    found = to_probabilities(np.full((1, 3), math.nan), TASKS)
    assert np.isnan(found).all()


def test_regressions_alone_are_what_they_are_and_probabilities_alone_too() -> None:
    outputs = np.array([[-3.0], [50.0]])
    assert to_probabilities(outputs, [WATCH]).tolist() == outputs.tolist()
    assert to_probabilities(outputs, [LIKE])[:, 0].tolist() == pytest.approx([sigmoid(-3.0), sigmoid(50.0)], rel=1e-15)


def test_no_rows_give_no_scores() -> None:
    assert to_probabilities(np.empty((0, 3)), TASKS).shape == (0, 3)
