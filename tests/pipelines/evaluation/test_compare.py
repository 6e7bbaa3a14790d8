"""Tests of ``pipelines.evaluation.compare``: two models on the same rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ranking
from pipelines.evaluation.compare import compare
from pipelines.evaluation.differences import metric_difference
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.format import format_comparison
from pipelines.evaluation.sources import Scorer, bundle_scorer, resolve_scorers, run_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.errors import LogError, UsageError
from ranking.metrics import (
    LabeledScores,
    SamplingUnits,
    UnitDraws,
    binary_measures,
    interval_units,
    regression_measures,
)
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import FIRST_DAY, QUICK, Shop
from tests.support.unit_draws import draw_users

CLICK, WATCH = RAW_SCHEMA["tasks"]
BINARY = [
    "auc",
    "gauc",
    "gauc_by_user_day",
    "logloss",
    "normalised_entropy",
    "calibration",
    "calibration_error",
    "ndcg",
]


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Write a log whose clicks depend on the tab and can be learned; two prices of its test day are infinite."""
    shop = Shop(tmp_path_factory.mktemp("market") / "shop")
    table = shop.table(2000)
    random = np.random.default_rng(5)
    clicks = random.random(2000) < 0.1 + 0.18 * table["tab"].to_numpy()
    index = table.column_names.index("is_click")
    table = table.set_column(index, "is_click", pa.array(clicks).cast(pa.int8()))
    for row in (1850, 1999):
        table = shop.with_value(table, "price", row, float("inf"))
    shop.write(table)
    return shop


@pytest.fixture(scope="module")
def train_run(market: Shop) -> Callable[..., RunFolder]:
    """Return a function that trains a configuration on the log of ``market`` once and returns its run."""
    runs: dict[str, RunFolder] = {}

    def train_once(name: str, **sections: Any) -> RunFolder:
        if name not in runs:
            runs[name] = train(market.config(**sections), market.folder / name)
        return runs[name]

    return train_once


@pytest.fixture(scope="module")
def with_tab(train_run: Callable[..., RunFolder]) -> RunFolder:
    return train_run("with_tab", training={"epochs": 4})


@pytest.fixture(scope="module")
def without_tab(train_run: Callable[..., RunFolder]) -> RunFolder:
    """Train without the tab, and without the price whose infinities make rows bad."""
    features = [feature for feature in RAW_SCHEMA["features"] if feature["name"] not in ("tab", "price")]
    return train_run("without_tab", features=features)


@pytest.fixture(scope="module")
def single(train_run: Callable[..., RunFolder]) -> RunFolder:
    """A run with one model per task; read only."""
    return train_run("single", model={"gate": {"kind": "single_task"}}, training={"batch_size": 256})


def task_scorers(single: RunFolder, task: str) -> Iterable[Scorer]:
    """Return the scorer of a run that has this task only."""
    return run_scorers(RunFolder.open(single.task_folder(task)))


def metrics_by_task(result: dict[str, Any]) -> dict[str, Any]:
    return {task: part["measures"] for task, part in result["tasks"].items()}


# Difference.

MANY = 1000
"""A number of units at which an interval is not widened."""


def draws(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values)


@pytest.mark.parametrize(
    ("measure", "better"),
    [
        ("auc", "b"),
        ("gauc", "b"),
        ("gauc_by_user_day", "b"),
        ("ndcg", "b"),
        ("logloss", "a"),
        ("rmse", "a"),
        ("calibration", None),
        ("calibration_error", None),
    ],
)
def test_metric_difference_with_interval_excluding_zero_names_the_better_model(
    measure: str, better: str | None
) -> None:
    result = metric_difference(measure, draws(0.5, 0.4, 0.6), draws(0.7, 0.5, 0.9), MANY)
    assert result["better"] == better
    assert (result["a"], result["b"], result["difference"]) == (0.5, 0.7, pytest.approx(0.2))
    assert result["interval"] == pytest.approx([0.1, 0.3])


def test_metric_difference_with_interval_containing_zero_names_no_better_model() -> None:
    assert metric_difference("auc", draws(0.5, 0.5, 0.5), draws(0.7, 0.4, 0.9), MANY)["better"] is None


def test_metric_difference_below_the_rounding_is_zero() -> None:
    result = metric_difference("auc", draws(0.5, 0.5, 0.5), draws(0.5, 0.5, 0.5) + 1e-8, MANY)
    assert (result["difference"], result["interval"], result["better"]) == (0.0, [0.0, 0.0], None)


def test_metric_difference_of_an_undefined_metric_is_none() -> None:
    result = metric_difference("auc", draws(np.nan, 0.5), draws(0.7, 0.7), MANY)
    assert result == {"a": None, "b": 0.7, "difference": None, "interval": None, "better": None}


@pytest.mark.parametrize(
    "positives", [2, *(pytest.param(positives, marks=pytest.mark.nightly) for positives in (5, 10, 30, 300))]
)
def test_equal_models_have_a_winner_in_five_percent_of_the_logs(positives: int) -> None:
    """Protects against false certainty with few positives, by simulation: 900 rows of 300 users, 250 logs."""
    random = np.random.default_rng(positives)
    winners = dict.fromkeys(("auc", "gauc", "logloss"), 0)
    for _ in range(250 if positives >= 5 else 5):  # no log with fewer positives has an interval
        truth, users = random.normal(size=900), random.integers(1, 301, 900)
        labels = np.zeros(900)
        labels[random.choice(900, positives, replace=False, p=np.exp(truth) / np.exp(truth).sum())] = 1
        units = SamplingUnits.of(users)
        log_draws = UnitDraws(units, 200)
        rows = [
            LabeledScores(labels, 1 / (1 + np.exp(-logits)), log_draws.codes, units.users)
            for logits in truth + random.normal(size=(2, 900)) + np.log(positives / (900 - positives))
        ]
        a, b = (binary_measures(scores, log_draws) for scores in rows)
        for metric in winners:
            result = metric_difference(metric, a[metric], b[metric], interval_units(rows[0], binary=True))
            winners[metric] += result["better"] is not None
            assert positives >= 5 or result["interval"] is None
    assert max(winners.values()) <= 0.07 * 250


@pytest.mark.parametrize("users", [2, *(pytest.param(users, marks=pytest.mark.nightly) for users in (5, 10, 30))])
def test_equal_regressions_have_a_winner_in_five_percent_of_the_logs(users: int) -> None:
    """Protects against false certainty with few labels, by simulation: one row per user, 250 logs."""
    random = np.random.default_rng(users)
    winners = dict.fromkeys(("rmse", "mae", "r2"), 0)
    for seed in range(250 if users >= 5 else 5):  # no log with fewer users has an interval
        truth = random.normal(size=users)
        labels = truth + random.normal(size=users)
        log_draws = draw_users(np.arange(users), 200, seed)
        rows = [
            LabeledScores(labels, truth + error, log_draws.codes, log_draws.units.users)
            for error in random.normal(size=(2, users))
        ]
        a, b = (regression_measures(scores, log_draws) for scores in rows)
        for metric in winners:
            result = metric_difference(metric, a[metric], b[metric], interval_units(rows[0], binary=False))
            winners[metric] += result["better"] is not None
            assert (result["interval"] is None) == (users < 5)
    assert max(winners.values()) <= 0.07 * 250


# Runs.


@pytest.fixture(scope="module")
def both(with_tab: RunFolder, without_tab: RunFolder) -> tuple[dict[str, Any], str]:
    """The comparison of the two runs, and what it prints to stderr; read only."""
    with redirect_stderr(StringIO()) as printed:
        result = compare(run_scorers(with_tab), run_scorers(without_tab))
    return result, printed.getvalue()


@pytest.fixture(scope="module")
def itself(with_tab: RunFolder) -> dict[str, Any]:
    """The comparison of a run with itself; read only."""
    return compare(run_scorers(with_tab), run_scorers(with_tab))


def test_compare_runs_returns_every_metric_of_every_shared_task(both: tuple[dict[str, Any], str]) -> None:
    result, _ = both
    json.dumps(result, allow_nan=False)
    assert list(result["tasks"]) == ["click", "watch"]
    assert list(result["tasks"]["click"]["measures"]) == BINARY
    assert list(result["tasks"]["watch"]["measures"]) == ["rmse", "mae", "r2"]


def test_compare_runs_excludes_rows_that_only_one_can_use(
    both: tuple[dict[str, Any], str], with_tab: RunFolder, without_tab: RunFolder
) -> None:
    result, printed = both
    assert result["rows"] == with_tab.load_evaluation()["rows"] == 198
    assert without_tab.load_evaluation()["rows"] == 200
    assert "excluded 2 rows that only one of the two models can use" in printed


def test_compare_run_with_itself_returns_the_values_of_its_evaluation(
    itself: dict[str, Any], with_tab: RunFolder
) -> None:
    click = itself["tasks"]["click"]
    for measure, value in with_tab.load_evaluation()["tasks"]["click"].items():
        if measure in BINARY:
            assert click["measures"][measure]["a"] == click["measures"][measure]["b"] == value


def test_compare_run_with_itself_returns_zero_differences(itself: dict[str, Any]) -> None:
    for measures in metrics_by_task(itself).values():
        for name, result in measures.items():
            if result["a"] is not None:
                assert (result["difference"], result["interval"], result["better"]) == (0.0, [0.0, 0.0], None), name


def test_compare_runs_in_either_order_names_the_same_better_run(
    both: tuple[dict[str, Any], str], with_tab: RunFolder, without_tab: RunFolder
) -> None:
    forward = metrics_by_task(compare(run_scorers(without_tab), run_scorers(with_tab)))["click"]["auc"]
    reverse = metrics_by_task(both[0])["click"]["auc"]
    assert (forward["better"], reverse["better"]) == ("b", "a")
    assert forward["difference"] == -reverse["difference"] > 0
    assert forward["interval"] == pytest.approx([-end for end in reversed(reverse["interval"])])


@pytest.mark.nightly(short="test_compare_runs_returns_every_metric_of_every_shared_task")
def test_compare_runs_returns_narrower_intervals_than_two_evaluations(
    with_tab: RunFolder, train_run: Callable[..., RunFolder]
) -> None:
    """Pairing removes the variance that both models share, such as users whose clicks are hard to predict."""
    twin = train_run("twin", training={"epochs": 4, "seed": 1})
    low, high = metrics_by_task(compare(run_scorers(with_tab), run_scorers(twin)))["click"]["logloss"]["interval"]
    separate = [run.load_evaluation()["tasks"]["click"]["logloss_interval"] for run in (with_tab, twin)]
    assert high - low < 0.7 * float(np.hypot(*(end - start for start, end in separate)))


def test_compare_runs_with_logs_uses_the_whole_log(market: Shop, with_tab: RunFolder, without_tab: RunFolder) -> None:
    assert compare(run_scorers(with_tab), run_scorers(without_tab), market.log)["rows"] == 1998


@pytest.fixture(scope="module")
def frozen(market: Shop, with_tab: RunFolder) -> Scorer:
    """Freeze the run and return the scorer of its bundle."""
    freeze_run(with_tab.path, market.folder / "bundle")
    return bundle_scorer(ranking.load(market.folder / "bundle"), "bundle")


# Bundles.


def test_compare_bundle_with_its_run_finds_no_difference(with_tab: RunFolder, frozen: Scorer) -> None:
    for measures in metrics_by_task(compare(run_scorers(with_tab), [frozen])).values():
        for name, result in measures.items():
            if result["a"] is not None:
                assert result["better"] is None, name
                assert abs(result["difference"]) < 1e-5, name


def test_compare_bundle_as_a_uses_the_test_split_of_b(with_tab: RunFolder, frozen: Scorer) -> None:
    assert compare([frozen], run_scorers(with_tab))["rows"] == 198


def test_compare_two_bundles_without_logs_fails(frozen: Scorer) -> None:
    with pytest.raises(LogError, match="bundle is a bundle, which does not contain a log: specify one with --logs"):
        compare([frozen], [frozen])


# A share of the users.


def test_compare_on_a_share_of_the_users(with_tab: RunFolder, without_tab: RunFolder) -> None:
    a, b = list(run_scorers(with_tab)), list(run_scorers(without_tab))
    everyone, some = compare(a, b), compare(a, b, users=0.5)
    assert (everyone["users"], some["users"]) == (1.0, 0.5)
    assert 0 < some["rows"] < everyone["rows"]
    assert some["intervals"]["units"] < everyone["intervals"]["units"]
    text = format_comparison({"a": "a", "b": "b", **some})
    assert f"{some['rows']} rows of 50 % of the users; * the interval excludes 0" in text


def test_compare_with_different_shares_of_the_users_needs_one(with_tab: RunFolder, frozen: Scorer) -> None:
    settings = frozen.settings.model_copy(update={"users": 0.5})
    a, b = list(run_scorers(with_tab)), [dataclasses.replace(frozen, settings=settings)]
    message = r"evaluation\.users is 1 for A and 0\.5 for B: choose one share with --users"
    with pytest.raises(UsageError, match=message):
        compare(a, b)
    assert compare(a, b, users=0.5)["users"] == 0.5


# Shared tasks.


def test_compare_with_one_shared_task_returns_that_task(with_tab: RunFolder, single: RunFolder) -> None:
    result = compare(task_scorers(single, "watch"), run_scorers(with_tab))
    assert list(result["tasks"]) == ["watch"]


def test_compare_without_a_shared_task_fails(single: RunFolder) -> None:
    a, b = task_scorers(single, "watch"), task_scorers(single, "click")
    with pytest.raises(UsageError, match="A and B have no task in common: A has watch, B has click"):
        compare(a, b)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"transform": "none"}, "transform is 'log1p' in A, 'none' in B"),
        ({"label": "price"}, "label is 'seconds' in A, 'price' in B"),
    ],
)
def test_compare_tasks_of_one_name_with_different_labels_fails(
    with_tab: RunFolder, train_run: Callable[..., RunFolder], change: dict[str, str], reason: str
) -> None:
    features = [feature for feature in RAW_SCHEMA["features"] if feature["name"] != "price"]
    other = train_run(reason.split()[0], tasks=[CLICK, {**WATCH, **change}], features=features, **QUICK)
    with pytest.raises(UsageError, match=f"task 'watch' differs between A and B: {reason}"):
        compare(run_scorers(with_tab), run_scorers(other))


def test_compare_single_task_run_returns_every_task(with_tab: RunFolder, single: RunFolder) -> None:
    result = compare(run_scorers(single), run_scorers(with_tab))
    assert list(result["tasks"]) == ["click", "watch"]
    for task, part in result["tasks"].items():
        for measure, m in part["measures"].items():
            assert m["a"] == pytest.approx(single.load_evaluation()["tasks"][task][measure])


# Training rows.


def test_compare_on_training_rows_of_b_warns(
    with_tab: RunFolder, train_run: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    early = split_settings(6, 7)
    late = train_run("late", logs=early, **QUICK)
    capsys.readouterr()
    compare(run_scorers(late), run_scorers(with_tab))  # the test split of A overlaps the training split of B
    err = capsys.readouterr().err
    assert f"{with_tab.path} was trained on data before 2026-01-09 00:00:00, and 200 of these rows are from" in err
    assert str(late.path) not in err


def test_compare_on_validation_rows_of_b_warns(
    with_tab: RunFolder, train_run: Callable[..., RunFolder], market: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """The validation of B chose its weights and its calibration on the rows on which A is tested."""
    later, bundle = train_run("later", logs=split_settings(9, 10), **QUICK), market.folder / "later_bundle"
    freeze_run(later.path, bundle)
    for b in (run_scorers(later), resolve_scorers(bundle)):
        capsys.readouterr()
        compare(run_scorers(with_tab), b)  # the test split of A is the validation split of B
        (warning,) = capsys.readouterr().err.splitlines()[-1:]
        assert "was validated on data from 2026-01-10 00:00:00 to 2026-01-11 00:00:00, and 198 of these rows" in warning
        assert str(with_tab.path) not in warning


def split_settings(validation: int, test: int) -> dict[str, Any]:
    """Return split settings: the days, counted from the first, on which validation and test begin."""
    return {"validation_from": FIRST_DAY.replace(day=1 + validation), "test_from": FIRST_DAY.replace(day=1 + test)}


def test_compare_on_many_files_matches_rows_by_file_and_position(
    tmp_path: Path, train_run: Callable[..., RunFolder]
) -> None:
    """B cannot use some rows, different ones in each file; labels and scores must still match."""
    shop = Shop(tmp_path / "shop")
    table = shop.table(600)
    for row in (3, 250, 251, 599):
        table = shop.with_value(table, "price", row, float("inf"))
    for part in range(3):
        shop.write(table.slice(200 * part, 200), f"part-{part}.parquet")
    settings = {"training": {"batch_size": 128}, "evaluation": {"bootstrap": 2}}
    with_price = train(shop.config(**settings), shop.folder / "with_price")
    features = [feature for feature in RAW_SCHEMA["features"] if feature["name"] != "price"]
    without_price = train(shop.config(features=features, **settings), shop.folder / "without_price")
    (a,), (b,) = run_scorers(without_price), run_scorers(with_price)
    result = compare([a], [b], shop.log)
    assert result["rows"] == 596
    clean_shop = Shop(tmp_path / "clean")
    keep = [row for row in range(600) if row not in (3, 250, 251, 599)]
    clean_shop.write(table.take(keep))
    for source, key in ((a, "a"), (b, "b")):
        expected = evaluate(source, clean_shop.log)["tasks"]["click"]
        for measure in BINARY:
            assert result["tasks"]["click"]["measures"][measure][key] == pytest.approx(expected[measure])


def test_unit_draws_of_the_same_users_are_identical() -> None:
    """Identical draws make the intervals paired."""
    users: Sequence[int] = np.random.default_rng(0).integers(50, size=300).tolist()
    first, second = (draw_users(users, 20) for _ in range(2))
    assert (first.counts == second.counts).all()


# Logs without users.


@pytest.fixture(scope="module")
def seeds_without_users(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Two seeds of one model on a log whose users are all null."""
    shop = Shop(tmp_path_factory.mktemp("census") / "shop")
    table = shop.table(3000)
    shop.write(table.set_column(table.column_names.index("user_id"), "user_id", pa.nulls(3000, pa.string())))
    runs = {}
    for name, seed in (("a", 0), ("b", 1)):
        runs[name] = train(shop.config(training={"seed": seed, "batch_size": 128}), shop.folder / name)
    return runs


def test_compare_two_seeds_without_users_finds_no_difference_in_most_metrics(
    seeds_without_users: dict[str, RunFolder],
) -> None:
    """The labels are noise, so that every difference is chance. One unit for all null users made all significant."""
    result = compare(run_scorers(seeds_without_users["a"]), run_scorers(seeds_without_users["b"]))
    assert result["intervals"] == {
        "unit": "row", "units": 300, "rows_without_user": 300, "placeholder_user": False, "draws": 200
    }  # fmt: skip
    measures = [m for part in metrics_by_task(result).values() for m in part.values() if m["interval"] is not None]
    assert len(measures) == len(BINARY) - len(("gauc", "gauc_by_user_day", "ndcg")) + len(("rmse", "mae", "r2"))
    assert all(m["interval"][0] < m["interval"][1] for m in measures)
    assert sum(not m["interval"][0] <= 0 <= m["interval"][1] for m in measures) <= 3


def test_evaluation_without_users_names_its_unit_and_has_no_gauc(seeds_without_users: dict[str, RunFolder]) -> None:
    evaluation = seeds_without_users["a"].load_evaluation()
    assert evaluation["intervals"]["unit"] == "row"
    click = evaluation["tasks"]["click"]
    assert (click["gauc"], click["gauc_interval"]) == (None, None)
    low, high = click["logloss_interval"]
    assert low < click["logloss"] < high
