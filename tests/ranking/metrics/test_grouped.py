"""GAUC and NDCG, compared with scikit-learn and with hand calculations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, roc_auc_score

from ranking.metrics import SamplingUnits, UnitDraws, binary_measures, grouped
from tests.support.unit_draws import draw_users, labeled_scores

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=40
)
"""Rows (user, label, score, request; 0 = unknown) with few distinct scores, so that ties occur."""


def compute_measures(
    users: Any, labels: Any, scores: Any, requests: Any = None, at: int = 10, draws: int = 0, days: Any = None
) -> dict[str, np.ndarray[Any, Any]]:
    user_draws = draw_users(users, draws)
    return binary_measures(labeled_scores(labels, scores, user_draws, requests, days), user_draws, at)


def gauc(*columns: Any) -> float | None:
    value = float(compute_measures(*columns)["gauc"][0])
    return None if np.isnan(value) else value


def gauc_by_user_day(*columns: Any, days: Any) -> float | None:
    value = float(compute_measures(*columns, days=days)["gauc_by_user_day"][0])
    return None if np.isnan(value) else value


def ndcg(*columns: Any, at: int = 10) -> float | None:
    value = float(compute_measures(*columns, at=at)["ndcg"][0])
    return None if np.isnan(value) else value


@given(ROWS)
def test_gauc_is_mean_auc_of_users_weighted_by_rows(sampled_rows: list[Any]) -> None:
    users, labels, scores, _ = np.array(sampled_rows).T
    both = [u for u in set(users.tolist()) if len(set(labels[users == u])) == 2]
    value = gauc(users, labels, scores)
    if not both:
        assert value is None
    else:
        aucs = [roc_auc_score(labels[users == u], scores[users == u]) for u in both]
        assert value == pytest.approx(np.average(aucs, weights=[np.sum(users == u) for u in both]))


@given(ROWS)
def test_gauc_by_user_day_is_mean_auc_of_user_days_weighted_by_rows(sampled_rows: list[Any]) -> None:
    users, labels, scores, days = np.array(sampled_rows).T
    groups = [(users == u) & (days == d) for u in range(4) for d in range(3)]
    both = [group for group in groups if len(set(labels[group])) == 2]
    value = gauc_by_user_day(users, labels, scores, days=days)
    if not both:
        assert value is None
    else:
        aucs = [roc_auc_score(labels[group], scores[group]) for group in both]
        assert value == pytest.approx(np.average(aucs, weights=[group.sum() for group in both]))


@given(ROWS)
def test_gauc_by_user_day_on_one_day_equals_gauc(sampled_rows: list[Any]) -> None:
    users, labels, scores, _ = np.array(sampled_rows).T
    assert gauc_by_user_day(users, labels, scores, days=np.full(len(users), 7)) == gauc(users, labels, scores)


def test_gauc_by_user_day_without_days_is_undefined() -> None:
    assert gauc_by_user_day([1, 1, 2, 2], [0, 1, 0, 1], [0.1, 0.2, 0.8, 0.9], days=None) is None


def test_gauc_of_a_user_counter_falls_below_one_half_but_gauc_by_user_day_does_not() -> None:
    """The labels are random, so no score can order the rows of a user.

    The score is the rate of the user's labels on earlier days. A positive raises the score of later rows only, so over
    several days the positives of a user have lower scores than the negatives. Within a day all rows share the score.
    """
    users, days, per_day = 2000, 4, 5
    labels = (np.random.default_rng(0).random((users, days, per_day)) < 0.3).astype(float)
    earlier = np.cumsum(labels.sum(2), axis=1) - labels.sum(2)
    rates = (earlier + 20 * 0.3) / (np.arange(days) * per_day + 20)  # smoothed by 20 impressions at the base rate
    scores = np.repeat(rates, per_day, axis=1).reshape(-1)
    user = np.repeat(np.arange(1, users + 1), days * per_day)
    day = np.tile(np.repeat(np.arange(days), per_day), users)
    measures = compute_measures(user, labels.reshape(-1), scores, days=day)
    assert measures["gauc"][0] < 0.48
    assert measures["gauc_by_user_day"][0] == 0.5


@given(ROWS, st.randoms(use_true_random=False))
def test_gauc_does_not_depend_on_order_of_rows(sampled_rows: list[Any], random: Any) -> None:
    users, labels, scores, _ = np.array(sampled_rows).T
    order = list(range(len(sampled_rows)))
    random.shuffle(order)
    assert gauc(users[order], labels[order], scores[order]) == pytest.approx(gauc(users, labels, scores))


def test_gauc_compares_scores_within_users_only() -> None:
    assert gauc([1, 1, 2, 2], [0, 1, 0, 1], [0.1, 0.2, 0.8, 0.9]) == 1.0


def test_gauc_without_user_with_both_classes_is_undefined() -> None:
    assert gauc([1, 2], [0, 1], [0.1, 0.2]) is None


def test_gauc_of_draw_weights_users_by_number_of_draws() -> None:
    """User 1 has AUC 1 on two rows, user 2 AUC 0 on four."""
    draws = draw_users([1, 1, 2, 2, 2, 2], 50)
    rows = labeled_scores([0, 1, 1, 0, 0, 0], [0.1, 0.2, 0.1, 0.2, 0.3, 0.4], draws)
    for value, (first, second) in zip(binary_measures(rows, draws)["gauc"], draws.counts.astype(int), strict=True):
        assert value == pytest.approx(2 * first / (2 * first + 4 * second))


def test_gauc_ignores_rows_without_a_user() -> None:
    """The rows without a user would have AUC 0."""
    units = SamplingUnits.of(np.array([1, 1, 2, 2, 0, 0]))
    draws = UnitDraws(units, 0)
    rows = labeled_scores([0, 1, 0, 1, 0, 1], [0.1, 0.2, 0.1, 0.2, 0.9, 0.1], draws)
    assert binary_measures(rows, draws)["gauc"] == [1.0]


@pytest.mark.parametrize("name", ["gauc", "gauc_by_user_day"])
def test_gauc_of_a_log_in_which_most_rows_have_no_user_is_undefined(name: str) -> None:
    draws = UnitDraws(SamplingUnits.of(np.array([1, 1, 0, 0, 0, 0])), 0)
    rows = labeled_scores([0, 1, 0, 1, 0, 1], [0.1, 0.2, 0.1, 0.2, 0.9, 0.1], draws, days=[1] * 6)
    assert np.isnan(binary_measures(rows, draws)[name][0])


def test_grouped_measures_of_a_single_unit_have_no_draws() -> None:
    """Only the first of many users has a request and both classes: draws of that user alone do not vary."""
    users = np.repeat(np.arange(1, 21), 2)
    draws = draw_users(users, 50)
    labels = [0, 1, *[1] * 38]
    rows = labeled_scores(labels, [0.1, 0.2] * 20, draws, [5, 5, *[0] * 38], [3] * 40)
    measures = binary_measures(rows, draws)
    for name in ("gauc", "gauc_by_user_day", "ndcg"):
        assert measures[name][0] == 1.0
        assert np.isnan(measures[name][1:]).all()


@given(ROWS, st.integers(1, 6))
def test_ndcg_equals_mean_of_scikit_learn_over_requests_with_a_positive(sampled_rows: list[Any], at: int) -> None:
    users, labels, scores, requests = np.array(sampled_rows).T
    ndcgs = []
    for request in {(u, r) for u, r in zip(users.tolist(), requests.tolist(), strict=True) if r}:
        in_request = (users == request[0]) & (requests == request[1])
        if labels[in_request].any():
            request_ndcg = (
                1.0 if in_request.sum() == 1 else ndcg_score([labels[in_request]], [scores[in_request]], k=at)
            )
            ndcgs.append(request_ndcg)
    value = ndcg(users, labels, scores, requests, at=at)
    assert value == (pytest.approx(np.mean(ndcgs)) if ndcgs else None)


def test_ndcg_matches_hand_calculation() -> None:
    """The two positives rank second and third: (1/log₂3 + 1/log₂4) / (1 + 1/log₂3)."""
    expected = (1 / np.log2(3) + 0.5) / (1 + 1 / np.log2(3))
    assert ndcg([1, 1, 1, 1], [0, 1, 1, 0], [0.9, 0.8, 0.7, 0.1], [5, 5, 5, 5]) == pytest.approx(expected)


def test_ndcg_ignores_ranks_beyond_k() -> None:
    rows = ([1, 1, 1], [0, 0, 1], [0.9, 0.8, 0.7], [5, 5, 5])
    assert ndcg(*rows, at=2) == 0.0
    assert ndcg(*rows, at=3) == pytest.approx(0.5)


def test_ndcg_same_request_id_of_two_users_counts_as_two_requests() -> None:
    value = ndcg([1, 1, 2, 2], [1, 0, 0, 1], [0.9, 0.1, 0.9, 0.1], [5, 5, 5, 5])
    assert value == pytest.approx((1 + 1 / np.log2(3)) / 2)


@pytest.mark.parametrize("requests", [None, [0, 0]])
def test_ndcg_without_requests_is_undefined(requests: list[int] | None) -> None:
    assert ndcg([1, 1], [1, 0], [0.9, 0.1], requests) is None


def test_ndcg_without_a_positive_is_undefined() -> None:
    assert ndcg([1, 1], [0, 0], [0.9, 0.1], [5, 5]) is None


@given(ROWS)
def test_measures_in_blocks_equal_those_of_all_rows(sampled_rows: list[Any]) -> None:
    users, labels, scores, requests = np.array(sampled_rows).T
    whole = compute_measures(users, labels, scores, requests, draws=5, days=requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "BLOCK_ROWS", 3)
        blocks = compute_measures(users, labels, scores, requests, draws=5, days=requests)
    for name, values in whole.items():
        np.testing.assert_allclose(blocks[name], values, rtol=1e-12, err_msg=name)


def test_ndcg_in_blocks_of_a_placeholder_request_without_users_equals_that_of_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row is a unit of its own, but all rows of one request id are one request."""
    random = np.random.default_rng(0)
    requests = np.where(random.random(300) < 0.6, 7, random.integers(1, 40, 300))
    draws = UnitDraws(SamplingUnits.of(np.zeros(300, np.int64), requests), 5)
    assert draws.units.count > 180
    rows = labeled_scores(random.random(300) < 0.3, random.random(300), draws, requests)
    whole = binary_measures(rows, draws)["ndcg"]
    monkeypatch.setattr(grouped, "BLOCK_ROWS", 20)
    np.testing.assert_allclose(binary_measures(rows, draws)["ndcg"], whole, rtol=1e-12)
