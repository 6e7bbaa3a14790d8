"""What ``evaluation.json`` holds, of rows written by hand, of runs and of bundles."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.config.config import EvaluationConfig
from pipelines.evaluation.evaluate import evaluate, evaluate_all, measure
from pipelines.evaluation.predict import Predictions
from pipelines.evaluation.run_sources import run_scorers
from pipelines.evaluation.sources import bundle_scorer
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.errors import LogError, RankerError, UsageError
from ranking.frozen.calibration import Calibration, Platt
from ranking.schema import Task

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

MakePredictions = Callable[..., Predictions]

CLICK = Task(name="click", kind="binary")
WATCH = Task(name="watch", kind="regression", transform="log1p")
NAN = float("nan")
BINARY = ("auc", "gauc", "logloss", "normalised_entropy", "calibration", "calibration_error", "ndcg")
NUMBER = ("rmse", "mae")


@pytest.fixture
def measured(make_predictions: MakePredictions) -> Callable[..., dict[str, Any]]:
    """(task, labels, scores, …) → the task's measures."""

    def of(task: Task, labels: list[float], scores: list[float], **more: Any) -> dict[str, Any]:
        settings = EvaluationConfig(**more.pop("settings", {}))
        result = measure(make_predictions([task], labels, scores, **more), settings)
        json.dumps(result, allow_nan=False)  # null where undefined, never NaN
        found: dict[str, Any] = result["tasks"][task.name]
        return found

    return of


class TestBinaryTasks:
    def test_are_measured_with_an_interval_for_each_measure(self, measured: Any) -> None:
        found = measured(CLICK, [1, 0, 1, 0], [0.9, 0.1, 0.4, 0.6], users=[7, 7, 8, 8], requests=[1, 1, 2, 2])
        assert set(found) == {"rows", "positives", *BINARY, *(f"{name}_interval" for name in BINARY)}
        assert (found["rows"], found["positives"]) == (4, 2)
        assert found["auc"] == pytest.approx(0.75)
        assert found["gauc"] == pytest.approx(0.5)  # 1 for user 7, 0 for user 8
        assert found["logloss"] == pytest.approx(-np.mean(np.log([0.9, 0.9, 0.4, 0.4])))
        assert found["normalised_entropy"] == pytest.approx(found["logloss"] / np.log(2))
        assert found["calibration"] == pytest.approx(1.0)
        assert found["ndcg"] == pytest.approx((1 + 1 / np.log2(3)) / 2)

    def test_ignore_rows_without_the_label(self, measured: Any) -> None:
        whole = measured(CLICK, [1, 0, 1, 0], [0.9, 0.1, 0.4, 0.6])
        masked = measured(CLICK, [1, NAN, 0, 1, NAN, 0], [0.9, 0.99, 0.1, 0.4, 0.01, 0.6])
        values = {"rows", "positives", *BINARY}  # intervals: the draws are of all users
        assert {name: masked[name] for name in values} == {name: whole[name] for name in values}

    def test_have_intervals_around_their_measures(self, measured: Any) -> None:
        random = np.random.default_rng(0)
        scores = random.random(500)
        labels = (random.random(500) < scores).astype(float)
        found = measured(CLICK, labels.tolist(), scores.tolist(), requests=(np.arange(500) // 5 + 1).tolist())
        for name in set(BINARY) - {"gauc", "calibration_error", "ndcg"}:
            low, high = found[f"{name}_interval"]
            assert low < found[name] < high
            assert high - low < 0.5 * found[name]

    def test_have_an_error_that_is_not_negative_even_at_its_low_end(self, measured: Any) -> None:
        random = np.random.default_rng(1)
        scores = random.random(60)
        labels = (random.random(60) < scores).astype(float)
        low, high = measured(CLICK, labels.tolist(), scores.tolist())["calibration_error_interval"]
        assert 0 <= low <= high

    def test_have_no_intervals_without_draws(self, measured: Any) -> None:
        found = measured(CLICK, [1, 0], [0.9, 0.1], settings={"bootstrap": 0})
        assert [value for name, value in found.items() if name.endswith("_interval")] == [None] * len(BINARY)
        assert found["auc"] == 1.0

    @pytest.mark.parametrize("label", [0, 1])
    def test_of_one_class_have_no_auc(self, measured: Any, label: int) -> None:
        found = measured(CLICK, [label] * 3, [0.1, 0.2, 0.3])
        assert [found[name] for name in ("auc", "gauc", "auc_interval", "normalised_entropy")] == [None] * 4
        assert found["logloss"] is not None

    def test_survive_scores_of_exactly_0_and_1(self, measured: Any) -> None:
        assert np.isfinite(measured(CLICK, [1, 0], [0.0, 1.0])["logloss"])


class TestRegressions:
    def test_are_measured_in_the_transformed_unit(self, measured: Any) -> None:
        found = measured(WATCH, [1.0, 2.0, NAN, 3.0], [1.0, 4.0, 99.0, 3.0])
        assert set(found) == {"rows", *NUMBER, *(f"{name}_interval" for name in NUMBER)}
        assert found["rows"] == 3
        assert found["rmse"] == pytest.approx(np.sqrt(4 / 3))
        assert found["mae"] == pytest.approx(2 / 3)

    def test_have_an_interval_around_the_rmse(self, measured: Any) -> None:
        errors = np.random.default_rng(0).standard_normal(400)
        low, high = measured(WATCH, [0.0] * 400, errors.tolist())["rmse_interval"]
        assert low < np.sqrt(np.mean(errors**2)) < high


class TestAllTasks:
    def test_a_task_whose_label_nobody_has_says_so(self, measured: Any) -> None:
        assert measured(CLICK, [NAN, NAN], [0.1, 0.2]) == {"rows": 0}

    def test_rows_count_whether_or_not_they_have_labels(self, make_predictions: MakePredictions) -> None:
        assert measure(make_predictions([CLICK], [1, NAN, 0], [0.5] * 3), EvaluationConfig())["rows"] == 3

    def test_each_is_measured_on_its_own_column(self, make_predictions: MakePredictions) -> None:
        predictions = make_predictions([CLICK, WATCH], [[1, 5.0], [0, 6.0]], [[0.8, 5.0], [0.3, 6.0]])
        found = measure(predictions, EvaluationConfig())["tasks"]
        assert list(found) == ["click", "watch"]
        assert found["click"]["auc"] == 1.0
        assert found["watch"]["rmse"] == 0.0

    def test_binary_ones_have_a_calibration_curve(self, make_predictions: MakePredictions) -> None:
        predictions = make_predictions([CLICK, WATCH], [[1, 5.0], [0, 6.0]], [[0.8, 5.0], [0.3, 6.0]])
        curves = measure(predictions, EvaluationConfig())["calibration_curves"]
        assert list(curves) == ["click"]
        assert [set(b) for b in curves["click"]] == [{"predicted", "observed", "low", "high", "rows"}] * 2

    def test_calibrated_ones_are_measured_before_too(self, make_predictions: MakePredictions) -> None:
        rows = ([1, 0, 0, 0], [0.5, 0.6, 0.4, 0.3])
        plain = measure(make_predictions([CLICK], *rows), EvaluationConfig())
        calibration = Calibration({"click": Platt(slope=1.0, shift=-1.0)})
        found = measure(make_predictions([CLICK], *rows, calibration=calibration), EvaluationConfig())
        assert found["uncalibrated"]["click"] == plain["tasks"]["click"]
        assert found["tasks"]["click"]["calibration"] < plain["tasks"]["click"]["calibration"]
        assert found["calibration_curves"] != plain["calibration_curves"]
        assert "uncalibrated" not in plain
        assert found["uncalibrated_curves"]["click"] == plain["calibration_curves"]["click"]


@pytest.fixture(scope="module")
def day(logs: Path) -> Path:
    """The test split as a log of its own."""
    return logs / "log" / "date=2026-01-10"


class TestRunAndBundle:
    def test_agree_on_the_same_rows(self, run: RunFolder, bundle: Path, day: Path) -> None:
        dense, frozen = (
            evaluate_all(run_scorers(run), day),
            evaluate(bundle_scorer(ranking.load(bundle), "bundle"), day),
        )
        assert dense["rows"] == frozen["rows"] > 0
        assert dense["tasks"].keys() == frozen["tasks"].keys()
        for task, measures in dense["tasks"].items():
            assert measures.keys() == frozen["tasks"][task].keys()
            for measure_, value in measures.items():
                assert frozen["tasks"][task][measure_] == pytest.approx(value, abs=1e-4), (task, measure_)

    def test_a_run_is_measured_on_its_test_split_unless_a_log_is_named(self, run: RunFolder, day: Path) -> None:
        assert evaluate_all(run_scorers(run)) == evaluate_all(run_scorers(run), day) == run.load_evaluation()

    def test_have_the_documented_form(self, run: RunFolder) -> None:
        found = evaluate_all(run_scorers(run))
        assert set(found) == {"rows", "ndcg_at", "tasks", "calibration_curves", "slices", "gates"}
        schema = run.load_config().schema_only
        assert list(found["tasks"]) == schema.task_names
        for task in schema.tasks:
            assert set(BINARY if task.kind == "binary" else NUMBER) <= set(found["tasks"][task.name])

    def test_refuse_a_log_without_labels(self, bundle: Path, day: Path, tmp_path: Path) -> None:
        (file,) = day.iterdir()
        pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["click"]), tmp_path / "log.parquet")
        with pytest.raises(LogError, match=r"log\.parquet: column 'click' \(label of task 'click'\) is missing"):
            evaluate(bundle_scorer(ranking.load(bundle), "bundle"), tmp_path / "log.parquet")

    def test_refuse_a_log_without_rows(self, bundle: Path, day: Path, tmp_path: Path) -> None:
        (file,) = day.iterdir()
        pq.write_table(pq.read_table(file, partitioning=None).slice(0, 0), tmp_path / "log.parquet")
        with pytest.raises(LogError, match=r"no row to evaluate: move logs\.test_from, or name another log"):
            evaluate(bundle_scorer(ranking.load(bundle), "bundle"), tmp_path / "log.parquet")

    def test_a_bundle_that_does_not_say_how_it_was_trained_is_measured_too(self, bundle: Path, day: Path) -> None:
        """Such as those that were frozen before bundles said so, and those of ``ranking.frozen.freeze`` alone."""
        ranker = ranking.load(bundle)
        silent = evaluate(bundle_scorer(dataclasses.replace(ranker, details={}), "bundle"), day)
        assert silent["tasks"] == evaluate(bundle_scorer(ranker, "bundle"), day)["tasks"]
        assert silent["gates"] is None

    def test_name_the_file_whose_ids_are_of_another_type(self, shop: Shop) -> None:
        table = shop.table(200)
        index = table.column_names.index("user_id")
        file = shop.write(table.set_column(index, "user_id", pa.array([n % 20 for n in range(200)])))
        freeze_run(train(shop.config(), shop.folder / "run").path, shop.folder / "bundle")
        shop.write(table)  # users by name, where the ranker knows them by number
        with pytest.raises(RankerError, match="'user_id': ids must be integers") as caught:
            evaluate(bundle_scorer(ranking.load(shop.folder / "bundle"), "bundle"), shop.log)
        assert str(caught.value).startswith(f"{file}: column ")

    def test_refuse_an_unknown_slice(self, run: RunFolder, bundle: Path, day: Path) -> None:
        says = r"no slice 'colour' of .*: choose from user_id, item_id, .*, new_user"
        with pytest.raises(UsageError, match=says):
            evaluate_all(run_scorers(run), slices=["colour"])
        with pytest.raises(UsageError, match=says):
            evaluate(bundle_scorer(ranking.load(bundle), "bundle"), day, ["colour"])


class TestWhatARowHasSeen:
    def test_is_said_where_rows_lie_in_the_time_of_training(
        self, run: RunFolder, bundle: Path, logs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for evaluated in (
            lambda: evaluate_all(run_scorers(run), logs / "log"),
            lambda: evaluate(bundle_scorer(ranking.load(bundle), "bundle"), logs / "log"),
        ):
            evaluated()
            err = capsys.readouterr().err
            assert "was trained on what lies before 2026-01-09 00:00:00, as 4," in err
            assert "the measures flatter it" in err

    def test_is_not_said_of_later_rows(
        self, run: RunFolder, bundle: Path, day: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        evaluate_all(run_scorers(run))
        evaluate(bundle_scorer(ranking.load(bundle), "bundle"), day)
        assert "flatter" not in capsys.readouterr().err


class TestRequests:
    @pytest.fixture
    def asked(self, shop: Shop) -> Shop:
        table = shop.table(400)
        ids = pa.array([None if n % 7 == 0 else f"r{n // 6}" for n in range(400)])
        shop.write(table.append_column("request", ids))
        return shop

    def test_give_an_ndcg_to_runs_and_bundles(self, asked: Shop) -> None:
        run = train(
            asked.config(columns={"request": "request"}, evaluation={"ndcg_at": 3, "slices": ["tab"]}),
            asked.folder / "run",
        )
        found = run.load_evaluation()
        assert 0 < found["tasks"]["click"]["ndcg"] <= 1
        assert found["ndcg_at"] == 3
        freeze_run(run.path, asked.folder / "bundle")
        frozen = evaluate(bundle_scorer(ranking.load(asked.folder / "bundle"), "bundle"), asked.log)
        assert frozen["ndcg_at"] == 3, "a bundle is measured as its run was"
        assert "tab" in frozen["slices"]
        assert frozen["tasks"]["click"]["ndcg"] is not None

    def test_are_missed_by_name(self, shop: Shop) -> None:
        file = shop.write(shop.table(200))
        with pytest.raises(LogError, match=r"column 'request' \(the request id\) is missing") as caught:
            train(shop.config(columns={"request": "request"}), shop.folder / "run")
        assert str(caught.value).startswith(str(file))


class TestRunsOfAnotherVersion:
    @pytest.fixture
    def copy(self, run: RunFolder, tmp_path: Path) -> RunFolder:
        return RunFolder(Path(shutil.copytree(run.path, tmp_path / "run")))

    def test_that_lack_what_is_measured_say_so(self, copy: RunFolder) -> None:
        selection = json.loads(copy.selection.read_text())
        del selection["per_example"]
        copy.selection.write_text(json.dumps(selection))
        with pytest.raises(LogError, match="lacks 'per_example': the run is of another version; train again"):
            evaluate_all(run_scorers(RunFolder.open(copy.path)))

    def test_whose_configuration_has_other_keys_say_so(self, copy: RunFolder) -> None:
        copy.config.write_text(copy.config.read_text() + "\n[training.convergence.old]\nkey = 1\n")
        with pytest.raises(LogError, match="old: unknown key; the run is damaged, or of another version: train again"):
            evaluate_all(run_scorers(RunFolder.open(copy.path)))
