"""AUC inside users and NDCG inside requests, against scikit-learn and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, roc_auc_score

from ranking.metrics import LabeledScores, UserDraws, binary_measures

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=40
)
"""(user, label, score, request, 0 = unknown); few scores, so that there are ties."""


def measured(
    users: Any, labels: Any, scores: Any, requests: Any = None, at: int = 10, draws: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    drawn = UserDraws(np.array(users, np.int64), draws)
    asked = None if requests is None else np.array(requests, np.int64)
    rows = LabeledScores(np.array(labels, float), np.array(scores, float), drawn.users, asked)
    return binary_measures(rows, drawn, at)


def gauc(*columns: Any) -> float | None:
    value = float(measured(*columns)["gauc"][0])
    return None if np.isnan(value) else value


def ndcg(*columns: Any, at: int = 10) -> float | None:
    value = float(measured(*columns, at=at)["ndcg"][0])
    return None if np.isnan(value) else value


class TestGauc:
    @given(ROWS)
    @settings(max_examples=100, deadline=None)
    def test_is_the_mean_auc_of_users_weighted_by_their_impressions(self, some: list[Any]) -> None:
        users, labels, scores, _ = np.array(some).T
        both = [u for u in set(users.tolist()) if len(set(labels[users == u])) == 2]
        found = gauc(users, labels, scores)
        if not both:
            assert found is None
        else:
            each = [roc_auc_score(labels[users == u], scores[users == u]) for u in both]
            assert found == pytest.approx(np.average(each, weights=[np.sum(users == u) for u in both]))

    @given(ROWS, st.randoms(use_true_random=False))
    @settings(max_examples=50, deadline=None)
    def test_does_not_depend_on_the_order_of_rows(self, some: list[Any], random: Any) -> None:
        users, labels, scores, _ = np.array(some).T
        order = list(range(len(some)))
        random.shuffle(order)
        assert gauc(users[order], labels[order], scores[order]) == pytest.approx(gauc(users, labels, scores))

    def test_ignores_scores_of_other_users(self) -> None:
        assert gauc([1, 1, 2, 2], [0, 1, 0, 1], [0.1, 0.2, 0.8, 0.9]) == 1.0

    def test_is_undefined_where_no_user_has_both_classes(self) -> None:
        assert gauc([1, 2], [0, 1], [0.1, 0.2]) is None

    def test_of_a_draw_counts_a_user_as_often_as_drawn(self) -> None:
        """User 1 has AUC 1 on two rows, user 2 AUC 0 on four."""
        draws = UserDraws(np.array([1, 1, 2, 2, 2, 2]), 50)
        rows = LabeledScores(np.array([0.0, 1, 1, 0, 0, 0]), np.array([0.1, 0.2, 0.1, 0.2, 0.3, 0.4]), draws.users)
        for value, (first, second) in zip(binary_measures(rows, draws)["gauc"], draws.counts.astype(int), strict=True):
            assert value == pytest.approx(2 * first / (2 * first + 4 * second))


class TestNdcg:
    @given(ROWS, st.integers(1, 6))
    @settings(max_examples=100, deadline=None)
    def test_is_the_mean_of_scikit_learns_over_the_requests_with_a_positive(self, some: list[Any], at: int) -> None:
        users, labels, scores, requests = np.array(some).T
        each = []
        for request in {(u, r) for u, r in zip(users.tolist(), requests.tolist(), strict=True) if r}:
            mine = (users == request[0]) & (requests == request[1])
            if labels[mine].any():
                one = 1.0 if mine.sum() == 1 else ndcg_score([labels[mine]], [scores[mine]], k=at)
                each.append(one)
        found = ndcg(users, labels, scores, requests, at=at)
        assert found == (pytest.approx(np.mean(each)) if each else None)

    def test_by_hand(self) -> None:
        """The two positives stand second and third: (1/log₂3 + 1/log₂4) / (1 + 1/log₂3)."""
        expected = (1 / np.log2(3) + 0.5) / (1 + 1 / np.log2(3))
        assert ndcg([1, 1, 1, 1], [0, 1, 1, 0], [0.9, 0.8, 0.7, 0.1], [5, 5, 5, 5]) == pytest.approx(expected)

    def test_looks_no_further_than_k(self) -> None:
        rows = ([1, 1, 1], [0, 0, 1], [0.9, 0.8, 0.7], [5, 5, 5])
        assert ndcg(*rows, at=2) == 0.0
        assert ndcg(*rows, at=3) == pytest.approx(0.5)

    def test_one_request_id_of_two_users_is_two_requests(self) -> None:
        found = ndcg([1, 1, 2, 2], [1, 0, 0, 1], [0.9, 0.1, 0.9, 0.1], [5, 5, 5, 5])
        assert found == pytest.approx((1 + 1 / np.log2(3)) / 2)

    @pytest.mark.parametrize("requests", [None, [0, 0]])
    def test_is_undefined_without_requests(self, requests: list[int] | None) -> None:
        assert ndcg([1, 1], [1, 0], [0.9, 0.1], requests) is None

    def test_is_undefined_without_a_positive(self) -> None:
        assert ndcg([1, 1], [0, 0], [0.9, 0.1], [5, 5]) is None
