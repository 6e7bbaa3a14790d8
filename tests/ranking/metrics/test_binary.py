"""Measures of binary tasks, compared with scikit-learn and with hand calculations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve as sklearn_curve
from sklearn.metrics import log_loss, roc_auc_score

from ranking.metrics import BINARY_MEASURES, LabeledScores, UnitDraws, auc, binary, binary_measures, calibration_curve
from tests.support.unit_draws import draw_users, labeled_scores

DRAWS = 12

ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 4)).map(lambda row: (*row[:2], row[2] / 5 + 0.1)),
    min_size=1,
    max_size=40,
)
"""Rows (user, label, probability) with few distinct probabilities, so that ties occur."""


def make_scores(rows: list[Any], draws: int = DRAWS) -> tuple[LabeledScores, UnitDraws]:
    users, labels, scores = np.array(rows).T
    user_draws = draw_users(users, draws)
    return labeled_scores(labels, scores, user_draws), user_draws


def repeat_drawn_rows(
    rows: LabeledScores, times: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return labels and probabilities with each user's rows repeated as often as the user was drawn."""
    repeats = times[rows.units]
    return np.repeat(rows.labels, repeats), np.repeat(rows.predictions, repeats)


@given(ROWS)
def test_measures_of_data_and_every_draw_equal_scikit_learn(sampled_rows: list[Any]) -> None:
    rows, draws = make_scores(sampled_rows)
    measures = binary_measures(rows, draws)
    for number, times in enumerate(draws.counts):
        labels, scores = repeat_drawn_rows(rows, times)
        expected = dict.fromkeys(("auc", "logloss", "normalised_entropy", "calibration"), np.nan)
        if len(labels):
            expected["logloss"] = log_loss(labels, scores, labels=[0, 1])
        if labels.sum():
            expected["calibration"] = scores.mean() / labels.mean()
        if len(set(labels)) == 2:
            base = log_loss(labels, np.full(len(labels), labels.mean()))
            expected |= {"auc": roc_auc_score(labels, scores), "normalised_entropy": expected["logloss"] / base}
        for name, value in expected.items():
            assert measures[name][number] == pytest.approx(value, nan_ok=True), name


def random_scores(count: int, seed: int = 0) -> tuple[LabeledScores, UnitDraws]:
    random = np.random.default_rng(seed)
    scores = random.random(count)
    labels = (random.random(count) < scores**2).astype(float)
    draws = draw_users(random.integers(count // 5, size=count), DRAWS)
    return labeled_scores(labels, scores, draws), draws


def test_calibration_curve_equals_scikit_learn() -> None:
    rows, draws = random_scores(503)
    curve = calibration_curve(rows, draws)
    observed, predicted = sklearn_curve(rows.labels, rows.predictions, n_bins=10, strategy="quantile")
    assert [b["observed"] for b in curve] == pytest.approx(list(observed))
    assert [b["predicted"] for b in curve] == pytest.approx(list(predicted))
    assert sum(b["rows"] for b in curve) == 503
    assert {b["rows"] for b in curve} <= {50, 51}


def test_calibration_curve_intervals_contain_observed_rates() -> None:
    curve = calibration_curve(*random_scores(800))
    assert all(b["low"] <= b["observed"] <= b["high"] for b in curve if b["low"] is not None)
    assert sum(b["low"] is not None for b in curve) >= 8


def test_calibration_curve_bin_of_one_class_has_no_interval() -> None:
    rows, draws = make_scores([(user, user % 2, 0.9 if user % 2 else 0.1) for user in range(40)])
    curve = calibration_curve(rows, draws)
    assert [(b["observed"], b["low"], b["high"]) for b in curve] == [(0.0, None, None), (1.0, None, None)]


def test_calibration_curve_of_equal_predictions_has_one_bin() -> None:
    (single_bin,) = calibration_curve(*make_scores([(0, 1, 0.5), (1, 0, 0.5), (2, 0, 0.5)]))
    assert (single_bin["rows"], single_bin["predicted"], single_bin["observed"]) == (3, 0.5, pytest.approx(1 / 3))


def test_calibration_error_is_row_weighted_mean_distance_of_curve() -> None:
    rows, draws = random_scores(997)
    curve = calibration_curve(rows, draws)
    expected = np.average([abs(b["observed"] - b["predicted"]) for b in curve], weights=[b["rows"] for b in curve])
    assert binary_measures(rows, draws)["calibration_error"][0] == pytest.approx(expected)


def test_calibration_error_uses_bins_of_the_data_in_every_draw() -> None:
    rows, draws = random_scores(300)
    errors = binary_measures(rows, draws)["calibration_error"]
    inner = np.quantile(rows.predictions, np.linspace(0, 1, 11)[1:-1])
    for value, times in zip(errors, draws.counts, strict=True):
        labels, scores = repeat_drawn_rows(rows, times)
        bins = np.searchsorted(inner, scores)
        gaps = [abs((labels - scores)[bins == b].sum()) for b in range(10)]
        assert value == pytest.approx(sum(gaps) / len(labels))


def test_calibration_error_of_calibrated_bins_is_zero() -> None:
    rows, draws = make_scores([(i, i % 2, 0.5) for i in range(10)] + [(i, i % 5 == 0, 0.2) for i in range(10)])
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
def test_auc_matches_hand_calculation(labels: list[int], scores: list[float], expected: float) -> None:
    assert auc(np.array(labels, float), np.array(scores)) == expected


@pytest.mark.parametrize("labels", [[], [0.0, 0.0], [1.0]])
def test_auc_without_both_classes_is_none(labels: list[float]) -> None:
    assert auc(np.array(labels), np.arange(len(labels), dtype=float)) is None


def test_logloss_of_certain_wrong_prediction_is_finite() -> None:
    rows, draws = make_scores([(0, 0, 1.0), (1, 1, 0.0)])
    assert binary_measures(rows, draws)["logloss"][0] == pytest.approx(-np.log(1e-7), rel=1e-6)


@pytest.mark.parametrize("label", [0, 1])
def test_binary_measures_of_one_class_are_nan_where_undefined_and_never_infinite(label: int) -> None:
    rows, draws = make_scores([(0, label, 0.2), (1, label, 0.4)])
    measures = {name: values[0] for name, values in binary_measures(rows, draws).items()}
    undefined = {"auc", "gauc", "gauc_by_user_day", "normalised_entropy", "ndcg"} | (
        set() if label else {"calibration"}
    )
    assert {name for name, value in measures.items() if np.isnan(value)} == undefined
    assert not np.isinf(list(measures.values())).any()


@pytest.mark.parametrize("only", [("auc",), ("logloss", "ndcg"), ("gauc_by_user_day", "calibration_error"), ()])
def test_only_the_requested_measures_are_computed(only: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    draws = draw_users(random.integers(9, size=200), 5)
    rows = labeled_scores(random.integers(2, size=200), random.random(200), draws, np.arange(200) // 4 + 1, [7] * 200)
    every = binary_measures(rows, draws)
    assert tuple(every) == BINARY_MEASURES
    functions = {"auc": "auc_draws", "gauc": "user_auc", "gauc_by_user_day": "user_day_auc", "ndcg": "request_ndcg"}
    for name, function in functions.items():
        if name not in only:
            monkeypatch.setattr(binary, function, None)
    some = binary_measures(rows, draws, only=only)
    assert some.keys() == set(only)
    for name, values in some.items():
        np.testing.assert_array_equal(values, every[name])
