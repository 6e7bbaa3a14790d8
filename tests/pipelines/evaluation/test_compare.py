"""Two models on the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ranking
from pipelines.evaluation.compare import compare, difference
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.run_sources import run_scorers
from pipelines.evaluation.sources import Scorer, bundle_scorer
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.errors import LogError, UsageError
from ranking.metrics import UserDraws
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import FIRST_DAY, Shop

CLICK, WATCH = RAW_SCHEMA["tasks"]
BINARY = ["auc", "gauc", "logloss", "normalised_entropy", "calibration", "calibration_error", "ndcg"]


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A log whose clicks follow the tab, so that they can be learnt; two prices of its test day are infinite."""
    shop = Shop(tmp_path_factory.mktemp("market") / "shop")
    table = shop.table(2000)
    random = np.random.default_rng(5)
    clicks = random.random(2000) < 0.1 + 0.18 * table["tab"].to_numpy()
    index = table.column_names.index("is_click")
    table = table.set_column(index, "is_click", pa.array(clicks).cast(pa.int8()))
    for row in (1850, 1999):
        table = shop.replaced(table, "price", row, float("inf"))
    shop.write(table)
    return shop


@pytest.fixture(scope="module")
def trained(market: Shop) -> Callable[..., RunFolder]:
    """(name, sections of the configuration) → its run on the market; trained once."""
    runs: dict[str, RunFolder] = {}

    def of(name: str, **sections: Any) -> RunFolder:
        if name not in runs:
            runs[name] = train(market.config(**sections), market.folder / name)
        return runs[name]

    return of


@pytest.fixture(scope="module")
def good(trained: Callable[..., RunFolder]) -> RunFolder:
    return trained("good", training={"epochs": 4})


@pytest.fixture(scope="module")
def blind(trained: Callable[..., RunFolder]) -> RunFolder:
    """Does not see the tab, nor the price whose infinities make rows bad."""
    seen = [feature for feature in RAW_SCHEMA["features"] if feature["name"] not in ("tab", "price")]
    return trained("blind", features=seen)


def without_names(found: dict[str, Any]) -> dict[str, Any]:
    return {task: part["measures"] for task, part in found["tasks"].items()}


class TestDifference:
    def draws(self, *values: float) -> np.ndarray[Any, Any]:
        return np.array(values)

    @pytest.mark.parametrize(
        ("measure", "better"),
        [("auc", "b"), ("gauc", "b"), ("ndcg", "b"), ("logloss", "a"), ("rmse", "a"), ("calibration", None)],
    )
    def test_says_which_is_better_where_the_interval_excludes_0(self, measure: str, better: str | None) -> None:
        found = difference(measure, self.draws(0.5, 0.4, 0.6), self.draws(0.7, 0.5, 0.9))
        assert found["better"] == better
        assert (found["a"], found["b"], found["difference"]) == (0.5, 0.7, pytest.approx(0.2))
        assert found["interval"] == pytest.approx([0.105, 0.295])

    def test_says_nothing_where_it_does_not(self) -> None:
        assert difference("auc", self.draws(0.5, 0.5, 0.5), self.draws(0.7, 0.4, 0.9))["better"] is None

    def test_of_rounding_is_none(self) -> None:
        found = difference("auc", self.draws(0.5, 0.5, 0.5), self.draws(0.5, 0.5, 0.5) + 1e-8)
        assert (found["difference"], found["interval"], found["better"]) == (0.0, [0.0, 0.0], None)

    def test_of_what_is_undefined_is_none(self) -> None:
        found = difference("auc", self.draws(np.nan, 0.5), self.draws(0.7, 0.7))
        assert found == {"a": None, "b": 0.7, "difference": None, "interval": None, "better": None}


class TestTwoRuns:
    def test_have_every_measure_of_every_task_they_share(self, good: RunFolder, blind: RunFolder) -> None:
        found = compare(run_scorers(good), run_scorers(blind))
        json.dumps(found, allow_nan=False)
        assert list(found["tasks"]) == ["click", "watch"]
        assert list(found["tasks"]["click"]["measures"]) == BINARY
        assert list(found["tasks"]["watch"]["measures"]) == ["rmse", "mae"]

    def test_are_measured_on_the_rows_that_both_can_use(
        self, good: RunFolder, blind: RunFolder, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = compare(run_scorers(good), run_scorers(blind))
        assert found["rows"] == good.load_evaluation()["rows"] == 198
        assert blind.load_evaluation()["rows"] == 200
        assert "2 rows that only one of the two can use are left out" in capsys.readouterr().err

    def test_have_the_values_of_their_own_evaluations(self, good: RunFolder, blind: RunFolder) -> None:
        """Where neither rejects a row that the other uses."""
        other = compare(run_scorers(good), run_scorers(good))["tasks"]["click"]
        for measure, value in good.load_evaluation()["tasks"]["click"].items():
            if measure in BINARY:
                assert other["measures"][measure]["a"] == other["measures"][measure]["b"] == value

    def test_that_are_one_differ_by_exactly_nothing(self, good: RunFolder) -> None:
        for measures in without_names(compare(run_scorers(good), run_scorers(good))).values():
            for name, found in measures.items():
                if found["a"] is not None:
                    assert (found["difference"], found["interval"], found["better"]) == (0.0, [0.0, 0.0], None), name

    def test_find_the_better_one_from_both_sides(self, good: RunFolder, blind: RunFolder) -> None:
        one = without_names(compare(run_scorers(blind), run_scorers(good)))["click"]
        other = without_names(compare(run_scorers(good), run_scorers(blind)))["click"]
        assert (one["auc"]["better"], other["auc"]["better"]) == ("b", "a")
        assert one["auc"]["difference"] == -other["auc"]["difference"] > 0
        assert one["auc"]["interval"] == pytest.approx([-end for end in reversed(other["auc"]["interval"])])

    def test_have_narrower_intervals_than_the_difference_of_two_evaluations(
        self, good: RunFolder, trained: Callable[..., RunFolder]
    ) -> None:
        """Users who are hard for one are hard for the other: pairing takes that out."""
        twin = trained("twin", training={"epochs": 4, "seed": 1})
        low, high = without_names(compare(run_scorers(good), run_scorers(twin)))["click"]["logloss"]["interval"]
        alone = [run.load_evaluation()["tasks"]["click"]["logloss_interval"] for run in (good, twin)]
        assert high - low < 0.7 * float(np.hypot(*(end - start for start, end in alone)))

    def test_are_measured_on_a_whole_log_if_one_is_named(self, market: Shop, good: RunFolder, blind: RunFolder) -> None:
        assert compare(run_scorers(good), run_scorers(blind), market.log)["rows"] == 1998


@pytest.fixture(scope="module")
def frozen(market: Shop, good: RunFolder) -> Scorer:
    """The good run's bundle."""
    freeze_run(good.path, market.folder / "bundle")
    return bundle_scorer(ranking.load(market.folder / "bundle"), "bundle")


class TestBundles:
    def test_equal_their_runs(self, good: RunFolder, frozen: Scorer) -> None:
        for measures in without_names(compare(run_scorers(good), [frozen])).values():
            for name, found in measures.items():
                if found["a"] is not None:
                    assert found["better"] is None, name
                    assert abs(found["difference"]) < 1e-5, name

    def test_as_a_are_measured_on_the_test_split_of_b(self, good: RunFolder, frozen: Scorer) -> None:
        assert compare([frozen], run_scorers(good))["rows"] == 198

    def test_need_a_log_where_neither_has_one(self, frozen: Scorer) -> None:
        with pytest.raises(LogError, match="bundle is a bundle, which carries no log: name one with --logs"):
            compare([frozen], [frozen])


class TestTasks:
    def test_of_which_one_is_shared_are_compared_in_that(
        self, good: RunFolder, trained: Callable[..., RunFolder]
    ) -> None:
        found = compare(run_scorers(trained("watch", tasks=[WATCH])), run_scorers(good))
        assert list(found["tasks"]) == ["watch"]

    def test_of_which_none_is_shared_are_refused(self, trained: Callable[..., RunFolder]) -> None:
        a, b = trained("watch", tasks=[WATCH]), trained("click", tasks=[CLICK])
        with pytest.raises(UsageError, match="they share no task: A has watch, B has click"):
            compare(run_scorers(a), run_scorers(b))

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"transform": "none"}, "transform is 'log1p' in A, 'none' in B"),
            ({"label": "price"}, "label is 'seconds' in A, 'price' in B"),
        ],
    )
    def test_of_one_name_but_another_label_are_refused(
        self, good: RunFolder, trained: Callable[..., RunFolder], change: dict[str, str], says: str
    ) -> None:
        features = [feature for feature in RAW_SCHEMA["features"] if feature["name"] != "price"]
        other = trained(says.split()[0], tasks=[CLICK, {**WATCH, **change}], features=features)
        with pytest.raises(UsageError, match=f"task 'watch' is not the same in both: {says}"):
            compare(run_scorers(good), run_scorers(other))

    def test_of_single_task_models_are_compared_one_by_one(
        self, good: RunFolder, trained: Callable[..., RunFolder]
    ) -> None:
        single = trained("single", model={"gate": {"kind": "single_task"}})
        found = compare(run_scorers(single), run_scorers(good))
        assert list(found["tasks"]) == ["click", "watch"]
        for task, part in found["tasks"].items():
            for measure, m in part["measures"].items():
                assert m["a"] == pytest.approx(single.load_evaluation()["tasks"][task][measure])


class TestRowsThatBHasSeen:
    def test_are_warned_of(
        self, good: RunFolder, trained: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]
    ) -> None:
        early = market_splits(6, 7)
        late = trained("late", logs=early)
        capsys.readouterr()
        compare(run_scorers(late), run_scorers(good))  # its test split is the others' days to train on
        err = capsys.readouterr().err
        assert f"{good.path} was trained on what lies before 2026-01-09 00:00:00, as 200 of these do" in err
        assert str(late.path) not in err


def market_splits(validation: int, test: int) -> dict[str, Any]:
    """Days from the first on which these splits begin."""
    return {
        "validation_from": FIRST_DAY.replace(day=1 + validation),
        "test_from": FIRST_DAY.replace(day=1 + test),
    }


def test_the_rows_of_many_files_are_matched_by_file_and_position(
    tmp_path: Path, trained: Callable[..., RunFolder]
) -> None:
    """B cannot use some rows, different ones in each file; labels and scores must still stand side by side."""
    shop = Shop(tmp_path / "shop")
    table = shop.table(600)
    for row in (3, 250, 251, 599):
        table = shop.replaced(table, "price", row, float("inf"))
    for part in range(3):
        shop.write(table.slice(200 * part, 200), f"part-{part}.parquet")
    whole = train(shop.config(), shop.folder / "whole")
    seen = [feature for feature in RAW_SCHEMA["features"] if feature["name"] != "price"]
    part = train(shop.config(features=seen), shop.folder / "part")
    (a,), (b,) = run_scorers(part), run_scorers(whole)
    found = compare([a], [b], shop.log)
    assert found["rows"] == 596
    without_bad = Shop(tmp_path / "clean")
    keep = [row for row in range(600) if row not in (3, 250, 251, 599)]
    without_bad.write(table.take(keep))
    for source, side in ((a, "a"), (b, "b")):
        alone = evaluate(source, without_bad.log)["tasks"]["click"]
        for measure in BINARY:
            assert found["tasks"]["click"]["measures"][measure][side] == pytest.approx(alone[measure])


def test_users_are_drawn_alike_for_both() -> None:
    """What makes the intervals paired."""
    users: Sequence[int] = np.random.default_rng(0).integers(50, size=300).tolist()
    one, other = (UserDraws(np.array(users, np.int64), 20) for _ in range(2))
    assert (one.counts == other.counts).all()
