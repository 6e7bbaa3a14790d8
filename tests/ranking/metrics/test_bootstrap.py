"""Draws of whole users, and intervals that cover the truth as often as they say."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from ranking.metrics import LabeledScores, UserDraws, auc, binary_measures, interval, regression_measures

ROWS_A_USER = 8


class TestDraws:
    def test_take_as_many_users_as_there_are(self) -> None:
        draws = UserDraws(np.array([9, 5, 9, 7, 5, 9]), 20)
        assert draws.counts.shape == (21, 3)
        assert (draws.counts.sum(1) == 3).all()
        assert len({tuple(draw) for draw in draws.counts}) > 5

    def test_begin_with_the_data_itself(self) -> None:
        assert (UserDraws(np.arange(50), 3).counts[0] == 1).all()

    def test_give_a_user_one_code(self) -> None:
        codes = UserDraws(np.array([9, 5, 9, 7, 5, 9])).users
        assert codes.tolist() == [2, 0, 2, 1, 0, 2]

    def test_of_the_same_seed_are_the_same(self) -> None:
        users = np.arange(30)
        assert (UserDraws(users, 5, seed=3).counts == UserDraws(users, 5, seed=3).counts).all()
        assert (UserDraws(users, 5, seed=3).counts != UserDraws(users, 5, seed=4).counts).any()

    def test_sum_each_column_over_the_drawn_rows(self) -> None:
        random = np.random.default_rng(0)
        users, columns = random.integers(9, size=60), random.random((2, 60))
        draws = UserDraws(users, 30)
        part = random.permutation(60)[:40]
        found = draws.sums(draws.users[part], columns[:, part])
        expected = columns[:, part] @ draws.counts[:, draws.users[part]].T
        np.testing.assert_allclose(found, expected)


class TestInterval:
    def test_holds_95_of_100_draws(self) -> None:
        assert interval(np.array([50.0, *range(1001)])) == (25.0, 975.0)

    def test_is_mirrored_at_the_value_for_what_noise_only_raises(self) -> None:
        assert interval(np.array([400.0, *range(1001)]), reflected=True) == (-175.0, 775.0)

    def test_leaves_out_draws_in_which_the_measure_is_undefined(self) -> None:
        assert interval(np.array([1.0, 1.0, 1.0, np.nan])) == (1.0, 1.0)

    @pytest.mark.parametrize("values", [[1.0], [np.nan, 1.0, 1.0], [1.0, np.nan, np.nan, 1.0, np.nan]])
    def test_is_undefined_without_draws_or_where_the_measure_often_is(self, values: list[float]) -> None:
        assert interval(np.array(values)) is None


def simulated(users: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Users who differ in level and in how well the scores know them; labels drawn from other probabilities."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), ROWS_A_USER)
    logit = random.normal(0, 0.8, users)[user] + random.normal(0, 1, len(user)) - 0.7
    score = 1 / (1 + np.exp(-logit))
    label = (random.random(len(user)) < 0.8 * score + 0.05).astype(float)
    return user, label, score


LOGS = 200


@pytest.fixture(scope="module")
def covered() -> dict[str, float]:
    """Measure → share of small logs whose interval holds the value of an endless one."""
    user, label, score = simulated(50_000, 10**6)
    once = UserDraws(user, 0)
    rows = LabeledScores(label, score, once.users)
    truth = {
        name: values[0] for name, values in (binary_measures(rows, once) | regression_measures(rows, once)).items()
    }
    hits = dict.fromkeys(truth, 0)
    for seed in range(LOGS):
        user, label, score = simulated(200, seed)
        draws = UserDraws(user, 200, seed)
        rows = LabeledScores(label, score, draws.users)
        found = binary_measures(rows, draws) | regression_measures(rows, draws)
        for name in hits:
            between = interval(found[name], reflected=name == "calibration_error")
            hits[name] += between is not None and between[0] <= truth[name] <= between[1]
    return {name: count / LOGS for name, count in hits.items()}


class TestCoverage:
    @pytest.mark.parametrize("measure", ["auc", "gauc", "logloss", "normalised_entropy", "calibration", "rmse", "mae"])
    def test_is_that_of_the_interval(self, covered: dict[str, float], measure: str) -> None:
        assert 0.9 <= covered[measure] <= 0.99, covered

    def test_of_the_calibration_error_is_less_but_useful(self, covered: dict[str, float]) -> None:
        assert covered["calibration_error"] >= 0.8, covered

    def test_fails_where_rows_are_drawn_in_place_of_users(self) -> None:
        """Why users: their rows hang together, and intervals over rows are too narrow."""
        hits = {"users": 0, "rows": 0}
        for seed in range(100):
            random = np.random.default_rng(seed)
            user = np.repeat(np.arange(60), 20)
            rows = (random.normal(size=60)[user], np.zeros(len(user)))  # a user's rows are all alike
            for name, by in (("users", user), ("rows", np.arange(len(user)))):
                draws = UserDraws(by, 100)
                between = interval(regression_measures(LabeledScores(*rows, draws.users), draws)["rmse"])
                assert between is not None
                hits[name] += between[0] <= 1.0 <= between[1]
        assert hits["users"] >= 85
        assert hits["rows"] <= 60


def test_draws_of_a_large_log_take_moments() -> None:
    random = np.random.default_rng(0)
    count = 100_000
    draws = UserDraws(random.integers(25_000, size=count), 200)
    scores = random.random(count)
    rows = LabeledScores(
        (random.random(count) < scores / 3).astype(float), scores, draws.users, random.integers(20_000, size=count)
    )
    start = time.process_time()
    found = binary_measures(rows, draws)
    assert time.process_time() - start < 3.0  # 0.3 s on an idle core
    assert found["auc"][0] == auc(rows.labels, rows.predictions)
