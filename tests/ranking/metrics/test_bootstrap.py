"""Bootstrap draws of whole users, and the coverage of the intervals."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ranking.metrics import (
    FEW_UNITS,
    SamplingUnits,
    UnitDraws,
    auc,
    binary_measures,
    bootstrap,
    calibration_curve,
    interval,
    regression_measures,
)
from tests.support.unit_draws import draw_users, labeled_scores

ROWS_PER_USER = 8
MANY = 1000
"""A number of units at which an interval is not widened."""


def test_unit_draws_draw_as_many_users_as_exist() -> None:
    draws = draw_users(np.array([9, 5, 9, 7, 5, 9]), 20)
    assert draws.counts.shape == (21, 3)
    assert (draws.counts.sum(1) == 3).all()
    assert len({tuple(draw) for draw in draws.counts}) > 5


def test_unit_draws_first_draw_is_the_data() -> None:
    assert (draw_users(np.arange(50), 3).counts[0] == 1).all()


def test_unit_draws_assign_one_code_per_user() -> None:
    codes = draw_users([9, 5, 9, 7, 5, 9]).codes
    assert codes.tolist() == [2, 0, 2, 1, 0, 2]


def test_unit_draws_with_same_seed_are_equal() -> None:
    users = np.arange(30)
    assert (draw_users(users, 5, seed=3).counts == draw_users(users, 5, seed=3).counts).all()
    assert (draw_users(users, 5, seed=3).counts != draw_users(users, 5, seed=4).counts).any()


def test_unit_draws_sums_equal_sums_over_drawn_rows() -> None:
    random = np.random.default_rng(0)
    users, columns = random.integers(9, size=60), random.random((2, 60))
    draws = draw_users(users, 30)
    part = random.permutation(60)[:40]
    sums = draws.sums(draws.codes[part], columns[:, part])
    expected = columns[:, part] @ draws.counts[:, draws.codes[part]].T
    np.testing.assert_allclose(sums, expected)


def test_interval_contains_95_percent_of_draws() -> None:
    assert interval(np.array([50.0, *range(1, 1000)]), MANY) == (25.0, 975.0)


def test_interval_reflected_is_mirrored_at_value() -> None:
    assert interval(np.array([400.0, *range(1, 1000)]), MANY, reflected=True) == (-175.0, 775.0)


def test_interval_ignores_undefined_draws() -> None:
    assert interval(np.array([1.0, 1.0, 1.0, np.nan]), MANY) == (1.0, 1.0)


@pytest.mark.parametrize("values", [[1.0], [np.nan, 1.0, 1.0], [1.0, np.nan, np.nan, 1.0, np.nan]])
def test_interval_without_enough_defined_draws_is_none(values: list[float]) -> None:
    assert interval(np.array(values), MANY) is None


def test_interval_of_a_single_unit_is_none() -> None:
    """All draws of a single unit are equal, which is not certainty."""
    assert interval(np.full(201, 0.7), 1) is None


def test_interval_that_excludes_its_value_is_extended_to_it() -> None:
    assert interval(np.array([2000.0, *range(1, 1000)]), MANY) == (25.0, 2000.0)
    assert interval(np.array([10.0, *range(1, 1000)]), MANY, reflected=True) == (-955.0, 10.0)


@pytest.mark.parametrize("units", [2, 5, 10, FEW_UNITS - 1])
def test_interval_of_few_units_equals_that_of_student(units: int) -> None:
    """The draws of a mean of n normal numbers have variance s² (n − 1) / n²."""
    deviation = np.sqrt((units - 1) / units**2)
    quantiles = np.linspace(0.0005, 0.9995, 1000)
    values = deviation * scipy.stats.norm.ppf(quantiles)
    half_width = scipy.stats.t.ppf(0.975, units - 1) / np.sqrt(units)
    assert interval(np.array([0.0, *values]), units) == pytest.approx((-half_width, half_width), rel=0.01)


def test_interval_of_many_units_is_not_widened() -> None:
    values = np.array([500.0, *range(1001)])
    assert interval(values, FEW_UNITS) == interval(values, MANY)


def test_unit_draws_of_more_units_than_groups_have_the_same_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    errors = random.normal(size=4000)
    widths = []
    for groups in (10_000, 500):
        monkeypatch.setattr(bootstrap, "MAX_GROUPS", groups)
        draws = UnitDraws(SamplingUnits.of(np.zeros(4000, np.int64)), 1000)
        assert draws.counts.shape[1] == min(groups, 4000)
        bounds = interval(regression_measures(labeled_scores(errors, np.zeros(4000), draws), draws)["rmse"], 4000)
        assert bounds is not None
        widths.append(bounds[1] - bounds[0])
    assert widths[1] == pytest.approx(widths[0], rel=0.15)


def simulate_log(users: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Simulate users that differ in base rate; the labels are drawn from probabilities other than the scores."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), ROWS_PER_USER)
    logit = random.normal(0, 0.8, users)[user] + random.normal(0, 1, len(user)) - 0.7
    score = 1 / (1 + np.exp(-logit))
    label = (random.random(len(user)) < 0.8 * score + 0.05).astype(float)
    return user, label, score


LOGS = 100


@pytest.fixture(scope="module")
def coverage() -> dict[str, float]:
    """Fraction of small logs, by measure, whose interval contains the value of a very large log."""
    user, label, score = simulate_log(50_000, 10**6)
    data_only = draw_users(user, 0)
    rows = labeled_scores(label, score, data_only)
    truth = {
        name: values[0]
        for name, values in (binary_measures(rows, data_only) | regression_measures(rows, data_only)).items()
    }
    hits = dict.fromkeys(truth, 0)
    for seed in range(LOGS):
        user, label, score = simulate_log(200, seed)
        draws = draw_users(user, 200, seed)
        rows = labeled_scores(label, score, draws)
        measures = binary_measures(rows, draws) | regression_measures(rows, draws)
        for name in hits:
            bounds = interval(measures[name], 200, reflected=name == "calibration_error")
            hits[name] += bounds is not None and bounds[0] <= truth[name] <= bounds[1]
    return {name: count / LOGS for name, count in hits.items()}


@pytest.mark.parametrize("measure", ["auc", "gauc", "logloss", "normalised_entropy", "calibration", "rmse", "mae"])
def test_interval_coverage_is_near_95_percent(coverage: dict[str, float], measure: str) -> None:
    assert 0.9 <= coverage[measure] <= 0.99, coverage


def test_interval_coverage_of_calibration_error_is_at_least_80_percent(coverage: dict[str, float]) -> None:
    assert coverage["calibration_error"] >= 0.8, coverage


@pytest.mark.parametrize("users", [4, 8, 16])
def test_interval_coverage_of_few_users_is_near_95_percent(users: int) -> None:
    """Without the widening, the intervals of 4 users cover about 75 %."""
    hits = 0
    for seed in range(LOGS):
        random = np.random.default_rng(seed)
        labels = np.repeat(random.normal(size=users), 5)  # All rows of a user are equal.
        draws = draw_users(np.repeat(np.arange(users), 5), 200, seed)
        measures = regression_measures(labeled_scores(np.exp(labels / 3), np.zeros(len(labels)), draws), draws)
        bounds = interval(measures["mae"], users)
        assert bounds is not None
        hits += bounds[0] <= np.exp(1 / 18) <= bounds[1]
    assert 0.88 <= hits / LOGS <= 1, hits


@pytest.mark.parametrize(
    "unknown", ["null", *(pytest.param(u, marks=pytest.mark.nightly) for u in ("placeholder", "third"))]
)
def test_interval_coverage_of_rows_without_users_is_near_95_percent(unknown: str) -> None:
    """Rows without a user are independent: none, one placeholder for 60 % of the rows, or a third of the rows."""
    hits = dict.fromkeys(("auc", "logloss", "rmse"), 0)
    truth: dict[str, float] = {}
    for seed in [10**6, *range(LOGS)]:
        random = np.random.default_rng(seed)
        count = 200_000 if seed == 10**6 else 400
        score = 1 / (1 + np.exp(-random.normal(-0.5, 1, count)))
        label = (random.random(count) < 0.8 * score + 0.05).astype(float)
        users = random.integers(1, 10**6, count)
        share = {"null": 1.0, "placeholder": 0.6, "third": 0.33}[unknown]
        users[random.random(count) < share] = 7 if unknown == "placeholder" else 0
        draws = UnitDraws(SamplingUnits.of(users), 0 if seed == 10**6 else 200, seed)
        rows = labeled_scores(label, score, draws)
        measures = binary_measures(rows, draws) | regression_measures(rows, draws)
        if seed == 10**6:
            truth = {name: values[0] for name, values in measures.items()}
            continue
        for name in hits:
            bounds = interval(measures[name], draws.units.count)
            assert bounds is not None
            hits[name] += bounds[0] <= truth[name] <= bounds[1]
    assert all(0.9 <= count / LOGS <= 0.99 for count in hits.values()), hits


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 1), st.floats(0, 1), st.integers(0, 4)), min_size=1, max_size=60
    ),
    seed=st.integers(0, 100),
)
def test_interval_of_every_measure_contains_its_value(rows: list[Any], seed: int) -> None:
    users, labels, scores, requests = (np.array(column) for column in zip(*rows, strict=True))
    draws = UnitDraws(SamplingUnits.of(users, requests), 40, seed)
    data = labeled_scores(labels, scores, draws, requests)
    for name, values in (binary_measures(data, draws) | regression_measures(data, draws)).items():
        bounds = interval(values, draws.units.count, reflected=name == "calibration_error")
        if bounds is not None:
            assert bounds[0] <= values[0] <= bounds[1], name
    for point in calibration_curve(data, draws):
        if point["low"] is not None:
            assert 0 <= point["low"] <= point["observed"] <= point["high"] <= 1


def test_interval_coverage_fails_if_rows_are_drawn_instead_of_users() -> None:
    """Rows of one user are not independent, so intervals over rows are too narrow."""
    hits = {"users": 0, "rows": 0}
    for seed in range(100):
        random = np.random.default_rng(seed)
        user = np.repeat(np.arange(60), 20)
        rows = (random.normal(size=60)[user], np.zeros(len(user)))  # All rows of a user are equal.
        for name, drawn_ids in (("users", user), ("rows", np.arange(len(user)))):
            draws = draw_users(drawn_ids, 100)
            bounds = interval(regression_measures(labeled_scores(*rows, draws), draws)["rmse"], draws.units.count)
            assert bounds is not None
            hits[name] += bounds[0] <= 1.0 <= bounds[1]
    assert hits["users"] >= 85
    assert hits["rows"] <= 60


def test_binary_measures_of_100_000_rows_take_less_than_3_seconds() -> None:
    random = np.random.default_rng(0)
    count = 100_000
    draws = draw_users(random.integers(25_000, size=count), 200)
    scores = random.random(count)
    requests = random.integers(20_000, size=count)
    rows = labeled_scores(random.random(count) < scores / 3, scores, draws, requests)
    start = time.thread_time()
    measures = binary_measures(rows, draws)
    assert time.thread_time() - start < 3.0  # 0.3 s on an idle core
    assert measures["auc"][0] == auc(rows.labels, rows.predictions)
