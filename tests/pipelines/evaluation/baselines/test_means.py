"""Means by id: as a group-by gives them, in bounded batches, with the prior that the labels imply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.baselines import means
from pipelines.evaluation.baselines.means import MeansById
from ranking.metrics import Array, Ids


def filled(ids: Ids, labels: Array, weights: Array) -> MeansById:
    """Return the means of one task [rows]."""
    table = MeansById(1)
    table.add(ids, labels[:, None].astype(np.float32), weights.astype(np.float32))
    return table


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.0, 1.0, np.nan]), st.floats(0.1, 3)), max_size=60),
    st.integers(1, 9),
)
def test_means_equal_those_of_a_group_by(rows: list[tuple[int, float, float]], batch: int) -> None:
    ids, labels, weights = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.empty(0),) * 3
    overall, table = 0.3, MeansById(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(means, "MIN_BUFFERED_ROWS", 4)
        for start in range(0, len(rows), batch):
            part = slice(start, start + batch)
            table.add(
                ids[part].astype(np.int64), labels[part, None].astype(np.float32), weights[part].astype(np.float32)
            )
    prior = table.prior(0)
    assert prior >= 0
    for number in range(8):
        chosen = (ids == number) & ~np.isnan(labels) if number else np.zeros(len(rows), bool)  # 0 is a null
        expected = overall
        if chosen.any() and np.isfinite(prior):
            total = weights[chosen].sum() + prior
            expected = ((labels[chosen] * weights[chosen]).sum() + prior * overall) / total
        assert table.predict(np.array([number]), 0, overall)[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("spread", "weight"), [(1.0, 1.0), (0.3, 1.0), (0.3, 2.5)])
def test_prior_is_the_variance_within_ids_over_that_between_ids(spread: float, weight: float) -> None:
    random = np.random.default_rng(0)
    share = np.arange(1.0, 501) ** -0.5
    ids = random.choice(500, 60_000, p=share / share.sum())
    labels = 3 + random.normal(0, spread, 500)[ids] + random.normal(0, 1, len(ids))
    table = filled(ids + 1, labels, np.full(len(ids), weight))
    assert table.prior(0) == pytest.approx(weight / spread**2, rel=0.15)


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.1])
def test_no_fixed_prior_is_much_better(spread: float) -> None:
    random = np.random.default_rng(1)
    share = np.arange(1.0, 401) ** -0.8
    ids = random.choice(400, 30_000, p=share / share.sum())
    true_means = 3 + random.normal(0, spread, 400)
    labels = true_means[ids] + random.normal(0, 1, len(ids))
    overall = float(labels.mean())
    table = filled(ids + 1, labels, np.ones(len(ids)))
    count, total = np.bincount(ids, minlength=400), np.bincount(ids, labels, 400)

    def error(predicted: Array) -> float:
        return float(((predicted - true_means) ** 2)[count > 0].mean())

    fixed = [error((total + prior * overall) / (count + prior)) for prior in (0.01, 1, 3, 10, 30, 100, 300)]
    assert error(table.predict(np.arange(1, 401), 0, overall).astype(np.float64)) <= 1.05 * min(fixed)


def test_ids_that_differ_by_chance_only_have_the_mean_of_all_rows() -> None:
    ids = np.repeat(np.arange(1, 11), 4)
    table = filled(ids, np.tile([0.0, 1.0, 0.0, 1.0], 10), np.ones(40))
    assert table.prior(0) == np.inf
    assert table.predict(np.array([1, 5]), 0, 0.5).tolist() == [0.5, 0.5]


def test_ids_with_one_row_each_have_the_mean_of_all_rows() -> None:
    table = filled(np.arange(1, 5), np.array([0.0, 1.0, 1.0, 0.0]), np.ones(4))
    assert table.prior(0) == np.inf
    assert table.predict(np.array([2]), 0, 0.5).tolist() == [0.5]


def test_labels_without_noise_need_no_prior() -> None:
    table = filled(np.array([1, 1, 2, 2]), np.array([0.0, 0.0, 4.0, 4.0]), np.ones(4))
    assert table.prior(0) == 0
    assert table.predict(np.array([1, 2, 3]), 0, 2.0).tolist() == [0, 4, 2]


def test_means_of_tasks_are_separate() -> None:
    table = MeansById(2)
    labels = np.array([[1, 10], [1, np.nan], [0, 4], [0, 4], [1, 10]], np.float32)
    table.add(np.array([5, 5, 6, 6, 5]), labels, np.ones(5, np.float32))
    assert len(table) == 2
    assert table.predict(np.array([5, 6]), 0, 0.5).tolist() == [1, 0]
    assert table.predict(np.array([5, 6]), 1, 7.0).tolist() == [10, 4]


def test_prior_follows_rows_that_are_added_later() -> None:
    ids, labels, weights = np.array([1, 1, 2, 2, 3, 3]), np.array([0.0, 1.0, 2.0, 3.0, 9.0, 8.0]), np.ones(6)
    table = filled(ids[:4], labels[:4], weights[:4])
    before = table.prior(0)
    table.add(ids[4:], labels[4:, None].astype(np.float32), weights[4:].astype(np.float32))
    assert table.prior(0) == filled(ids, labels, weights).prior(0) != before
