"""Bootstrap draws of whole users, and the coverage of the intervals."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from ranking.metrics import LabeledScores, UserDraws, auc, binary_measures, interval, regression_measures

ROWS_PER_USER = 8


def test_user_draws_draw_as_many_users_as_exist() -> None:
    draws = UserDraws(np.array([9, 5, 9, 7, 5, 9]), 20)
    assert draws.counts.shape == (21, 3)
    assert (draws.counts.sum(1) == 3).all()
    assert len({tuple(draw) for draw in draws.counts}) > 5


def test_user_draws_first_draw_is_the_data() -> None:
    assert (UserDraws(np.arange(50), 3).counts[0] == 1).all()


def test_user_draws_assign_one_code_per_user() -> None:
    codes = UserDraws(np.array([9, 5, 9, 7, 5, 9])).users
    assert codes.tolist() == [2, 0, 2, 1, 0, 2]


def test_user_draws_with_same_seed_are_equal() -> None:
    users = np.arange(30)
    assert (UserDraws(users, 5, seed=3).counts == UserDraws(users, 5, seed=3).counts).all()
    assert (UserDraws(users, 5, seed=3).counts != UserDraws(users, 5, seed=4).counts).any()


def test_user_draws_sums_equal_sums_over_drawn_rows() -> None:
    random = np.random.default_rng(0)
    users, columns = random.integers(9, size=60), random.random((2, 60))
    draws = UserDraws(users, 30)
    part = random.permutation(60)[:40]
    sums = draws.sums(draws.users[part], columns[:, part])
    expected = columns[:, part] @ draws.counts[:, draws.users[part]].T
    np.testing.assert_allclose(sums, expected)


def test_interval_contains_95_percent_of_draws() -> None:
    assert interval(np.array([50.0, *range(1001)])) == (25.0, 975.0)


def test_interval_reflected_is_mirrored_at_value() -> None:
    assert interval(np.array([400.0, *range(1001)]), reflected=True) == (-175.0, 775.0)


def test_interval_ignores_undefined_draws() -> None:
    assert interval(np.array([1.0, 1.0, 1.0, np.nan])) == (1.0, 1.0)


@pytest.mark.parametrize("values", [[1.0], [np.nan, 1.0, 1.0], [1.0, np.nan, np.nan, 1.0, np.nan]])
def test_interval_without_enough_defined_draws_is_none(values: list[float]) -> None:
    assert interval(np.array(values)) is None


def simulate_log(users: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Simulate users that differ in base rate; the labels are drawn from probabilities other than the scores."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), ROWS_PER_USER)
    logit = random.normal(0, 0.8, users)[user] + random.normal(0, 1, len(user)) - 0.7
    score = 1 / (1 + np.exp(-logit))
    label = (random.random(len(user)) < 0.8 * score + 0.05).astype(float)
    return user, label, score


LOGS = 200


@pytest.fixture(scope="module")
def coverage() -> dict[str, float]:
    """Fraction of small logs, by measure, whose interval contains the value of a very large log."""
    user, label, score = simulate_log(50_000, 10**6)
    data_only = UserDraws(user, 0)
    rows = LabeledScores(label, score, data_only.users)
    truth = {
        name: values[0]
        for name, values in (binary_measures(rows, data_only) | regression_measures(rows, data_only)).items()
    }
    hits = dict.fromkeys(truth, 0)
    for seed in range(LOGS):
        user, label, score = simulate_log(200, seed)
        draws = UserDraws(user, 200, seed)
        rows = LabeledScores(label, score, draws.users)
        measures = binary_measures(rows, draws) | regression_measures(rows, draws)
        for name in hits:
            bounds = interval(measures[name], reflected=name == "calibration_error")
            hits[name] += bounds is not None and bounds[0] <= truth[name] <= bounds[1]
    return {name: count / LOGS for name, count in hits.items()}


@pytest.mark.parametrize("measure", ["auc", "gauc", "logloss", "normalised_entropy", "calibration", "rmse", "mae"])
def test_interval_coverage_is_near_95_percent(coverage: dict[str, float], measure: str) -> None:
    assert 0.9 <= coverage[measure] <= 0.99, coverage


def test_interval_coverage_of_calibration_error_is_at_least_80_percent(coverage: dict[str, float]) -> None:
    assert coverage["calibration_error"] >= 0.8, coverage


def test_interval_coverage_fails_if_rows_are_drawn_instead_of_users() -> None:
    """Rows of one user are not independent, so intervals over rows are too narrow."""
    hits = {"users": 0, "rows": 0}
    for seed in range(100):
        random = np.random.default_rng(seed)
        user = np.repeat(np.arange(60), 20)
        rows = (random.normal(size=60)[user], np.zeros(len(user)))  # All rows of a user are equal.
        for name, drawn_ids in (("users", user), ("rows", np.arange(len(user)))):
            draws = UserDraws(drawn_ids, 100)
            bounds = interval(regression_measures(LabeledScores(*rows, draws.users), draws)["rmse"])
            assert bounds is not None
            hits[name] += bounds[0] <= 1.0 <= bounds[1]
    assert hits["users"] >= 85
    assert hits["rows"] <= 60


def test_binary_measures_of_100_000_rows_take_less_than_3_seconds() -> None:
    random = np.random.default_rng(0)
    count = 100_000
    draws = UserDraws(random.integers(25_000, size=count), 200)
    scores = random.random(count)
    rows = LabeledScores(
        (random.random(count) < scores / 3).astype(float), scores, draws.users, random.integers(20_000, size=count)
    )
    start = time.process_time()
    measures = binary_measures(rows, draws)
    assert time.process_time() - start < 3.0  # 0.3 s on an idle core
    assert measures["auc"][0] == auc(rows.labels, rows.predictions)
