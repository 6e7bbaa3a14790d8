"""Conversion of tower outputs to probabilities and regression values, for outputs of any size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.frozen.calibration import to_probabilities
from ranking.schema import Task

CLICK, LIKE = Task(name="click", kind="binary"), Task(name="like", kind="binary")
WATCH = Task(name="watch", kind="regression", transform="log1p")
TASKS = [CLICK, WATCH, LIKE]

pytestmark = pytest.mark.filterwarnings("error")
"""Warnings would reach the log of the service whenever a probability is 0."""

both_float_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def test_to_probabilities_matches_hand_calculation() -> None:
    outputs = np.array([[0.0, -3.0, 100.0], [-100.0, 7.5, 1.0]])
    expected = [[0.5, -3.0, 1.0], [math.exp(-100.0), 7.5, 0.7310585786300049]]
    np.testing.assert_allclose(to_probabilities(outputs, TASKS), expected, rtol=1e-15)


@given(st.floats(-700.0, 700.0))
def test_to_probabilities_equals_sigmoid_for_any_logit(logit: float) -> None:
    (scores,) = to_probabilities(np.array([[logit]]), [CLICK])[0]
    assert scores == pytest.approx(sigmoid(logit), rel=1e-14, abs=0.0)


@both_float_types
def test_to_probabilities_of_largest_logits_is_zero_or_one_without_warning(dtype: type[np.floating[Any]]) -> None:
    with np.errstate(all="warn", under="ignore"):
        for size in (1e3, float(np.finfo(dtype).max), math.inf):
            outputs = np.array([[size, size, -size], [-size, -size, size]], dtype)
            assert to_probabilities(outputs, TASKS).tolist() == [[1.0, size, 0.0], [0.0, -size, 1.0]]


@both_float_types
def test_to_probabilities_returns_float64_for_any_float_type(dtype: type[np.floating[Any]]) -> None:
    scores = to_probabilities(np.array([[0.1, 0.1, 0.1]], dtype), TASKS)
    assert scores.dtype == np.float64
    assert scores[0, 1] == float(dtype(0.1))
    assert scores[0, 0] == scores[0, 2] == pytest.approx(sigmoid(float(dtype(0.1))), rel=1e-15)


@given(st.permutations(range(3)))
def test_to_probabilities_columns_follow_order_of_tasks(order: list[int]) -> None:
    outputs = np.array([[2.0, -3.0, 0.5], [-1.0, 7.5, 1.0]])
    scores = to_probabilities(outputs[:, order], [TASKS[i] for i in order])
    np.testing.assert_array_equal(scores, to_probabilities(outputs, TASKS)[:, order])


def test_to_probabilities_is_nondecreasing_in_logit() -> None:
    scores = to_probabilities(np.linspace(-800.0, 800.0, 40_001)[:, None], [CLICK])[:, 0]
    assert (np.diff(scores) >= 0).all()
    assert (scores[0], scores[20_000], scores[-1]) == (0.0, 0.5, 1.0)


@both_float_types
def test_to_probabilities_does_not_modify_outputs(dtype: type[np.floating[Any]]) -> None:
    outputs = np.ones((2, 3), dtype)
    to_probabilities(outputs, TASKS)
    assert outputs.tolist() == [[1.0] * 3] * 2


def test_to_probabilities_keeps_nan() -> None:
    scores = to_probabilities(np.full((1, 3), math.nan), TASKS)
    assert np.isnan(scores).all()


def test_to_probabilities_of_one_kind_of_task_converts_binary_tasks_only() -> None:
    outputs = np.array([[-3.0], [50.0]])
    assert to_probabilities(outputs, [WATCH]).tolist() == outputs.tolist()
    assert to_probabilities(outputs, [LIKE])[:, 0].tolist() == pytest.approx([sigmoid(-3.0), sigmoid(50.0)], rel=1e-15)


def test_to_probabilities_of_no_rows_is_empty() -> None:
    assert to_probabilities(np.empty((0, 3)), TASKS).shape == (0, 3)
