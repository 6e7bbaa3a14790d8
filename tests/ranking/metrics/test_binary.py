"""Measures of binary tasks, against scikit-learn and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve as sklearn_curve
from sklearn.metrics import log_loss, roc_auc_score

from ranking.metrics import LabeledScores, UserDraws, auc, binary_measures, calibration_curve

DRAWS = 12

SOME = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 4)).map(lambda row: (*row[:2], row[2] / 5 + 0.1)),
    min_size=1,
    max_size=40,
)
"""(user, label, probability); few probabilities, so that there are ties."""


def prepared(rows: list[Any], draws: int = DRAWS) -> tuple[LabeledScores, UserDraws]:
    users, labels, scores = np.array(rows).T
    drawn = UserDraws(users.astype(np.int64), draws)
    return LabeledScores(labels, scores, drawn.users), drawn


def repeated(rows: LabeledScores, times: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Labels and probabilities with each user's rows as often as the user was drawn."""
    often = times[rows.users]
    return np.repeat(rows.labels, often), np.repeat(rows.predictions, often)


@given(SOME)
@settings(max_examples=60, deadline=None)
def test_auc_is_that_of_scikit_learn_in_the_data_and_in_every_draw(some: list[Any]) -> None:
    rows, draws = prepared(some)
    for value, times in zip(binary_measures(rows, draws)["auc"], draws.counts, strict=True):
        labels, scores = repeated(rows, times)
        if len(set(labels)) < 2:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(roc_auc_score(labels, scores))


@given(SOME)
@settings(max_examples=60, deadline=None)
def test_logloss_is_that_of_scikit_learn_in_the_data_and_in_every_draw(some: list[Any]) -> None:
    rows, draws = prepared(some)
    for value, times in zip(binary_measures(rows, draws)["logloss"], draws.counts, strict=True):
        labels, scores = repeated(rows, times)
        if len(labels):
            assert value == pytest.approx(log_loss(labels, scores, labels=[0, 1]))


@given(SOME)
@settings(max_examples=60, deadline=None)
def test_normalised_entropy_is_the_share_of_the_logloss_of_the_base_rate(some: list[Any]) -> None:
    rows, draws = prepared(some)
    for value, times in zip(binary_measures(rows, draws)["normalised_entropy"], draws.counts, strict=True):
        labels, scores = repeated(rows, times)
        if len(set(labels)) < 2:
            assert np.isnan(value)
        else:
            base = log_loss(labels, np.full(len(labels), labels.mean()))
            assert value == pytest.approx(log_loss(labels, scores) / base)


@given(SOME)
@settings(max_examples=60, deadline=None)
def test_calibration_is_mean_prediction_over_base_rate(some: list[Any]) -> None:
    rows, draws = prepared(some)
    for value, times in zip(binary_measures(rows, draws)["calibration"], draws.counts, strict=True):
        labels, scores = repeated(rows, times)
        if not labels.sum():
            assert np.isnan(value)
        else:
            assert value == pytest.approx(scores.mean() / labels.mean())


def continuous(count: int, seed: int = 0) -> tuple[LabeledScores, UserDraws]:
    random = np.random.default_rng(seed)
    scores = random.random(count)
    labels = (random.random(count) < scores**2).astype(float)
    draws = UserDraws(random.integers(count // 5, size=count), DRAWS)
    return LabeledScores(labels, scores, draws.users), draws


class TestCalibrationCurve:
    def test_is_that_of_scikit_learn(self) -> None:
        rows, draws = continuous(503)
        found = calibration_curve(rows, draws)
        observed, predicted = sklearn_curve(rows.labels, rows.predictions, n_bins=10, strategy="quantile")
        assert [b["observed"] for b in found] == pytest.approx(list(observed))
        assert [b["predicted"] for b in found] == pytest.approx(list(predicted))
        assert sum(b["rows"] for b in found) == 503
        assert {b["rows"] for b in found} <= {50, 51}

    def test_has_the_interval_of_each_observed_rate(self) -> None:
        found = calibration_curve(*continuous(800))
        assert all(b["low"] <= b["observed"] <= b["high"] for b in found if b["low"] is not None)
        assert sum(b["low"] is not None for b in found) >= 8

    def test_has_no_interval_where_a_bin_holds_one_class(self) -> None:
        rows, draws = prepared([(user, user % 2, 0.9 if user % 2 else 0.1) for user in range(40)])
        found = calibration_curve(rows, draws)
        assert [(b["observed"], b["low"], b["high"]) for b in found] == [(0.0, None, None), (1.0, None, None)]

    def test_of_one_prediction_is_one_bin(self) -> None:
        (only,) = calibration_curve(*prepared([(0, 1, 0.5), (1, 0, 0.5), (2, 0, 0.5)]))
        assert (only["rows"], only["predicted"], only["observed"]) == (3, 0.5, pytest.approx(1 / 3))


class TestCalibrationError:
    def test_is_the_curves_mean_distance_weighted_by_rows(self) -> None:
        rows, draws = continuous(997)
        curve = calibration_curve(rows, draws)
        expected = np.average([abs(b["observed"] - b["predicted"]) for b in curve], weights=[b["rows"] for b in curve])
        assert binary_measures(rows, draws)["calibration_error"][0] == pytest.approx(expected)

    def test_keeps_the_bins_of_the_data_in_every_draw(self) -> None:
        rows, draws = continuous(300)
        found = binary_measures(rows, draws)["calibration_error"]
        inner = np.quantile(rows.predictions, np.linspace(0, 1, 11)[1:-1])
        for value, times in zip(found, draws.counts, strict=True):
            labels, scores = repeated(rows, times)
            bins = np.searchsorted(inner, scores)
            gaps = [abs((labels - scores)[bins == b].sum()) for b in range(10)]
            assert value == pytest.approx(sum(gaps) / len(labels))

    def test_is_0_where_every_bin_keeps_its_promise(self) -> None:
        rows, draws = prepared([(i, i % 2, 0.5) for i in range(10)] + [(i, i % 5 == 0, 0.2) for i in range(10)])
        assert binary_measures(rows, draws)["calibration_error"][0] == pytest.approx(0.0)


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


def test_logloss_of_a_certain_mistake_is_finite() -> None:
    rows, draws = prepared([(0, 0, 1.0), (1, 1, 0.0)])
    assert binary_measures(rows, draws)["logloss"][0] == pytest.approx(-np.log(1e-7), rel=1e-6)


@pytest.mark.parametrize("label", [0, 1])
def test_what_one_class_leaves_undefined_is_nan_never_infinite(label: int) -> None:
    rows, draws = prepared([(0, label, 0.2), (1, label, 0.4)])
    found = {name: values[0] for name, values in binary_measures(rows, draws).items()}
    undefined = {"auc", "gauc", "normalised_entropy", "ndcg"} | (set() if label else {"calibration"})
    assert {name for name, value in found.items() if np.isnan(value)} == undefined
    assert not np.isinf(list(found.values())).any()
