"""Ranking quality, against scikit-learn and by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

from ranking.metrics import RankedScores, auc, calibration, gauc, logloss, rmse, user_bootstrap

Rows = list[tuple[int, int, int, int]]
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40
)
"""(user, label, score, weight); few scores, so that there are ties."""


def columns(rows: Rows) -> tuple[np.ndarray[Any, Any], ...]:
    users, labels, scores, weights = np.array(rows).T
    return users, labels.astype(float), scores / 4.0, weights.astype(float)


# AUC.


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_auc_is_that_of_scikit_learn(rows: Rows) -> None:
    _, labels, scores, _ = columns(rows)
    if len(set(labels)) < 2:
        assert auc(labels, scores) is None
    else:
        assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_weighted_auc_is_that_of_scikit_learn(rows: Rows) -> None:
    _, labels, scores, weights = columns(rows)
    found = RankedScores(labels, scores).auc(weights)
    seen = weights > 0
    if len(set(labels[seen])) < 2:
        assert found is None
    else:
        assert found == pytest.approx(roc_auc_score(labels[seen], scores[seen], sample_weight=weights[seen]))


@given(ROWS)
@settings(max_examples=50, deadline=None)
def test_a_weight_counts_as_so_many_rows(rows: Rows) -> None:
    _, labels, scores, weights = columns(rows)
    times = weights.astype(int)
    assert RankedScores(labels, scores).auc(weights) == pytest.approx(
        auc(np.repeat(labels, times), np.repeat(scores, times))
    )


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4], 1.0),
        ([1, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], 0.0),
        ([0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5], 0.5),
        ([0, 1, 1], [0.5, 0.5, 0.9], 0.75),
    ],
)
def test_auc_by_hand(labels: list[int], scores: list[float], expected: float) -> None:
    assert auc(np.array(labels, float), np.array(scores)) == expected


@pytest.mark.parametrize("labels", [[], [0.0, 0.0], [1.0]])
def test_auc_is_undefined_without_both_classes(labels: list[float]) -> None:
    assert auc(np.array(labels), np.arange(len(labels), dtype=float)) is None


# Grouped AUC.


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_gauc_is_the_mean_auc_of_users_weighted_by_their_impressions(rows: Rows) -> None:
    users, labels, scores, _ = columns(rows)
    both = [u for u in set(users.tolist()) if len(set(labels[users == u])) == 2]
    found = gauc(labels, scores, users)
    if not both:
        assert found is None
    else:
        each = [roc_auc_score(labels[users == u], scores[users == u]) for u in both]
        assert found == pytest.approx(np.average(each, weights=[np.sum(users == u) for u in both]))


@given(ROWS)
@settings(max_examples=50, deadline=None)
def test_gauc_of_one_user_is_auc(rows: Rows) -> None:
    _, labels, scores, _ = columns(rows)
    assert gauc(labels, scores, np.full(len(labels), 7)) == pytest.approx(auc(labels, scores))


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_gauc_does_not_depend_on_the_order_of_rows(rows: Rows, random: Any) -> None:
    users, labels, scores, _ = columns(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert gauc(labels[order], scores[order], users[order]) == pytest.approx(gauc(labels, scores, users))


def test_gauc_ignores_scores_of_other_users() -> None:
    users, labels = np.array([1, 1, 2, 2]), np.array([0.0, 1.0, 0.0, 1.0])
    scores = np.array([0.1, 0.2, 0.8, 0.9])
    assert gauc(labels, scores, users) == 1.0
    assert auc(labels, scores) == 0.75


def test_gauc_is_undefined_where_no_user_has_both_classes() -> None:
    assert gauc(np.array([0.0, 1.0]), np.array([0.1, 0.2]), np.array([1, 2])) is None
    assert gauc(np.array([]), np.array([]), np.array([], np.int64)) is None


# Probabilities and numbers.


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0.001, 0.999)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_logloss_is_that_of_scikit_learn(rows: list[tuple[int, float]]) -> None:
    labels, scores = np.array(rows).T
    assert logloss(labels, scores) == pytest.approx(log_loss(labels, scores, labels=[0, 1]))


def test_logloss_of_a_certain_mistake_is_finite() -> None:
    found = logloss(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    assert found == pytest.approx(-np.log(1e-7), rel=1e-6)


def test_calibration_is_mean_prediction_over_base_rate() -> None:
    labels, scores = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    assert calibration(labels, scores) == pytest.approx(0.5)
    assert calibration(labels, labels) == 1.0


def test_calibration_is_undefined_without_a_positive() -> None:
    assert calibration(np.zeros(3), np.array([0.1, 0.2, 0.3])) is None


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_rmse_is_the_root_of_scikit_learns_mean_squared_error(rows: list[tuple[float, float]]) -> None:
    labels, predictions = np.array(rows).T
    assert rmse(labels, predictions) == pytest.approx(np.sqrt(mean_squared_error(labels, predictions)))


# Bootstrap over users.


def sample(users: int, rows: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
    """Users who differ in level; labels that the scores predict a little."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), rows)
    scores = random.random(users)[user] + 0.2 * random.random(users * rows)
    labels = (random.random(users * rows) < 0.2 + 0.4 * scores).astype(float)
    return user, labels, scores


def test_the_interval_contains_the_point_estimate() -> None:
    user, labels, scores = sample(60, 8)
    ranked = RankedScores(labels, scores)
    point, interval = ranked.auc(), user_bootstrap(ranked.auc, user)
    assert point is not None
    assert interval is not None
    low, high = interval
    assert low < point < high
    assert low >= 0.0
    assert high <= 1.0


def test_the_interval_is_wider_where_rows_of_a_user_hang_together() -> None:
    user = np.repeat(np.arange(40), 25)
    values = np.random.default_rng(1).random(40)[user]  # a user's rows are all alike

    def mean(weights: np.ndarray[Any, Any]) -> float:
        return float(np.average(values, weights=weights))

    by_user, by_row = user_bootstrap(mean, user), user_bootstrap(mean, np.arange(len(user)))
    assert by_user is not None
    assert by_row is not None
    assert by_user[1] - by_user[0] > 3 * (by_row[1] - by_row[0])


def test_all_rows_of_a_user_are_drawn_together_and_as_many_users_as_there_are() -> None:
    user, drawn = np.array([9, 5, 9, 7, 5, 9]), []

    def keep(weights: np.ndarray[Any, Any]) -> float:
        drawn.append(weights)
        return 0.0

    user_bootstrap(keep, user, samples=20)
    assert len(drawn) == 20
    for weights in drawn:
        by_user = {u: set(weights[user == u]) for u in (5, 7, 9)}
        assert all(len(times) == 1 for times in by_user.values())
        assert sum(times.pop() for times in by_user.values()) == 3
    assert len({tuple(weights) for weights in drawn}) > 1


def test_the_same_seed_draws_the_same_interval() -> None:
    user, labels, scores = sample(30, 4)
    statistic: Callable[..., float | None] = RankedScores(labels, scores).auc
    assert user_bootstrap(statistic, user, seed=3) == user_bootstrap(statistic, user, seed=3)
    assert user_bootstrap(statistic, user, seed=3) != user_bootstrap(statistic, user, seed=4)


def test_the_interval_is_undefined_where_the_statistic_is() -> None:
    ranked = RankedScores(np.zeros(6), np.arange(6.0))
    assert user_bootstrap(ranked.auc, np.arange(6)) is None
    assert user_bootstrap(ranked.auc, np.array([], np.int64)) is None


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_an_interval_has_a_low_and_a_high_end(seed: int) -> None:
    user, labels, scores = sample(12, 3, seed)
    assume(0 < labels.sum() < len(labels))
    interval = user_bootstrap(RankedScores(labels, scores).auc, user, samples=50, seed=seed)
    assert interval is None or 0.0 <= interval[0] <= interval[1] <= 1.0
