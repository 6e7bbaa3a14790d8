from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.evaluation import Predictions, evaluate, evaluate_bundle, predict, table
from pipelines.freezing import freeze_run
from pipelines.run_folder import RunFolder
from pipelines.train import evaluate_run, train
from ranking.errors import LogError, RankerError
from ranking.schema import Task
from ranking.specialisation import Specialisation

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

CLICK = Task(name="click", kind="binary")
WATCH = Task(name="watch", kind="regression", transform="log1p")
NAN = float("nan")


def predictions(labels: list[float], scores: list[float], users: list[int] | None = None) -> Predictions:
    """Of one task; every row is another user's unless they are given."""
    who = np.array(users if users is not None else range(len(labels)), np.int64)
    return Predictions(np.array(labels, float).reshape(-1, 1), np.array(scores, float).reshape(-1, 1), who)


def measured(task: Task, *rows: Any) -> dict[str, Any]:
    result = evaluate(predictions(*rows), [task])
    json.dumps(result, allow_nan=False)  # null where undefined, never NaN
    measures: dict[str, Any] = result["tasks"][task.name]
    return measures


class TestBinaryTasks:
    def test_are_measured_by_auc_gauc_logloss_and_calibration(self) -> None:
        found = measured(CLICK, [1, 0, 1, 0], [0.9, 0.1, 0.4, 0.6], [7, 7, 8, 8])
        assert set(found) == {"rows", "positives", "auc", "auc_interval", "gauc", "logloss", "calibration"}
        assert (found["rows"], found["positives"]) == (4, 2)
        assert found["auc"] == pytest.approx(0.75)
        assert found["gauc"] == pytest.approx(0.5)  # 1 for user 7, 0 for user 8
        assert found["logloss"] == pytest.approx(-np.mean(np.log([0.9, 0.9, 0.4, 0.4])))
        assert found["calibration"] == pytest.approx(1.0)

    def test_ignore_rows_without_the_label(self) -> None:
        whole = measured(CLICK, [1, 0, 1, 0], [0.9, 0.1, 0.4, 0.6])
        masked = measured(CLICK, [1, NAN, 0, 1, NAN, 0], [0.9, 0.99, 0.1, 0.4, 0.01, 0.6], [0, 9, 1, 2, 9, 3])
        assert masked == whole

    def test_have_an_interval_around_the_auc(self) -> None:
        random = np.random.default_rng(0)
        labels = random.random(500) < 0.3
        found = measured(CLICK, labels.tolist(), (labels * 0.2 + random.random(500)).tolist())
        low, high = found["auc_interval"]
        assert low < found["auc"] < high
        assert high - low < 0.2

    @pytest.mark.parametrize("label", [0, 1])
    def test_of_one_class_have_no_auc(self, label: int) -> None:
        found = measured(CLICK, [label] * 3, [0.1, 0.2, 0.3])
        assert found["auc"] is None
        assert found["gauc"] is None
        assert found["auc_interval"] is None
        assert found["logloss"] is not None

    def test_without_a_positive_have_no_calibration(self) -> None:
        assert measured(CLICK, [0, 0], [0.1, 0.2])["calibration"] is None

    def test_have_no_gauc_where_no_user_has_both_classes(self) -> None:
        found = measured(CLICK, [1, 1, 0], [0.9, 0.8, 0.1], [7, 7, 8])
        assert found["gauc"] is None
        assert found["auc"] == 1.0

    def test_survive_scores_of_exactly_0_and_1(self) -> None:
        assert np.isfinite(measured(CLICK, [1, 0], [0.0, 1.0])["logloss"])


class TestRegressions:
    def test_are_measured_by_rmse_in_the_transformed_unit(self) -> None:
        found = measured(WATCH, [1.0, 2.0, NAN, 3.0], [1.0, 4.0, 99.0, 3.0])
        assert set(found) == {"rows", "rmse", "rmse_interval"}
        assert found["rows"] == 3
        assert found["rmse"] == pytest.approx(np.sqrt(4 / 3))

    def test_have_an_interval_around_the_rmse(self) -> None:
        errors = np.random.default_rng(0).standard_normal(400)
        low, high = measured(WATCH, [0.0] * 400, errors.tolist())["rmse_interval"]
        assert low < np.sqrt(np.mean(errors**2)) < high


class TestAllTasks:
    def test_a_task_whose_label_nobody_has_says_so(self) -> None:
        assert measured(CLICK, [NAN, NAN], [0.1, 0.2]) == {"rows": 0}

    def test_rows_count_whether_or_not_they_have_labels(self) -> None:
        assert evaluate(predictions([1, NAN, 0], [0.5, 0.5, 0.5]), [CLICK])["rows"] == 3

    def test_each_is_measured_on_its_own_column(self) -> None:
        labels, scores = np.array([[1, 5.0], [0, 6.0]]), np.array([[0.8, 5.0], [0.3, 6.0]])
        found = evaluate(Predictions(labels, scores, np.arange(2)), [CLICK, WATCH])["tasks"]
        assert list(found) == ["click", "watch"]
        assert found["click"]["auc"] == 1.0
        assert found["watch"]["rmse"] == 0.0

    def test_nothing_to_evaluate_is_an_error_with_the_mend(self) -> None:
        with pytest.raises(LogError, match=r"no row to evaluate: move logs\.test_from, or name another log"):
            predict([], lambda inputs: (inputs.dense, inputs.dense), Specialisation([CLICK], 1))


class TestTable:
    def test_has_a_line_a_task_with_its_measures(self) -> None:
        labels, scores = np.array([[1, 5.0], [0, 6.5]] * 600), np.array([[0.8, 5.0], [0.3, 6.0]] * 600)
        text = table(evaluate(Predictions(labels, scores, np.arange(1200)), [CLICK, WATCH]))
        rows, header, click, watch = text.splitlines()
        assert rows == "1,200 rows"
        assert header.split() == [
            "task",
            "positives",
            "auc",
            "95",
            "%",
            "interval",
            "gauc",
            "logloss",
            "calibr.",
            "rmse",
        ]
        assert click.split() == ["click", "600", "1.0000", "1.0000–1.0000", "–", "0.2899", "1.100", "–"]
        assert watch.split()[0] == "watch"
        assert watch.split()[-1] == "0.3536"

    def test_shows_a_dash_for_what_is_undefined(self) -> None:
        line = table(evaluate(predictions([NAN], [0.5]), [CLICK])).splitlines()[-1]
        assert line.split() == ["click"] + ["–"] * 7

    def test_stands_in_columns(self, run: RunFolder) -> None:
        tasks, _, _ = table(json.loads(run.evaluation.read_text())).partition("\n\n")
        _, header, *lines = tasks.splitlines()
        assert len(lines) == len(run.load_config().tasks)
        assert {len(line) for line in lines} == {len(header)}


@pytest.fixture(scope="module")
def day(logs: Path) -> Path:
    """The test split as a log of its own."""
    return logs / "log" / "date=2026-01-10"


class TestRunAndBundle:
    def test_agree_on_the_same_rows(self, run: RunFolder, bundle: Path, day: Path) -> None:
        dense, frozen = evaluate_run(run, day), evaluate_bundle(ranking.load(bundle), day)
        assert dense["rows"] == frozen["rows"] > 0
        assert dense["tasks"].keys() == frozen["tasks"].keys()
        for task, measures in dense["tasks"].items():
            assert measures.keys() == frozen["tasks"][task].keys()
            for measure, value in measures.items():
                # two scores that rounding swaps move the AUC of a rare task by more than 1e-4
                assert frozen["tasks"][task][measure] == pytest.approx(value, abs=1e-3), (task, measure)

    def test_a_run_is_measured_on_its_test_split_unless_a_log_is_named(self, run: RunFolder, day: Path) -> None:
        assert evaluate_run(run) == evaluate_run(run, day)

    def test_have_the_documented_form(self, run: RunFolder) -> None:
        found = evaluate_run(run)
        assert set(found) == {"rows", "tasks", "gates"}
        schema = run.load_config().schema_only
        assert list(found["tasks"]) == schema.task_names
        for task in schema.tasks:
            wanted = {"auc", "gauc", "logloss", "calibration"} if task.kind == "binary" else {"rmse"}
            assert wanted <= set(found["tasks"][task.name])

    def test_refuse_a_log_without_labels(self, bundle: Path, day: Path, tmp_path: Path) -> None:
        (file,) = day.iterdir()
        pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["click"]), tmp_path / "log.parquet")
        with pytest.raises(LogError, match=r"log\.parquet: column 'click' \(label of task 'click'\) is missing"):
            evaluate_bundle(ranking.load(bundle), tmp_path / "log.parquet")

    def test_refuse_a_log_without_rows(self, bundle: Path, day: Path, tmp_path: Path) -> None:
        (file,) = day.iterdir()
        pq.write_table(pq.read_table(file, partitioning=None).slice(0, 0), tmp_path / "log.parquet")
        with pytest.raises(LogError, match="no row to evaluate"):
            evaluate_bundle(ranking.load(bundle), tmp_path / "log.parquet")

    def test_a_bundle_that_does_not_say_how_its_gate_was_trained_is_measured_too(self, bundle: Path, day: Path) -> None:
        """Such as those that were frozen before bundles said so, and those of ``ranking.frozen.freeze`` alone."""
        ranker = ranking.load(bundle)
        details = {name: value for name, value in ranker.details.items() if name != "selection"}
        silent = evaluate_bundle(dataclasses.replace(ranker, details=details), day)
        assert silent["tasks"] == evaluate_bundle(ranker, day)["tasks"]

    def test_name_the_file_whose_ids_are_of_another_type(self, shop: Shop) -> None:
        table = shop.table(200)
        index = table.column_names.index("user_id")
        file = shop.write(table.set_column(index, "user_id", pa.array([n % 20 for n in range(200)])))
        freeze_run(train(shop.config(), shop.folder / "run").path, shop.folder / "bundle")
        shop.write(table)  # users by name, where the ranker knows them by number
        with pytest.raises(RankerError, match="'user_id': ids must be integers") as caught:
            evaluate_bundle(ranking.load(shop.folder / "bundle"), shop.log)
        assert str(caught.value).startswith(f"{file}: column ")


class TestRunsOfAnotherVersion:
    @pytest.fixture
    def copy(self, run: RunFolder, tmp_path: Path) -> RunFolder:
        return RunFolder(Path(shutil.copytree(run.path, tmp_path / "run")))

    def test_that_lack_what_is_measured_say_so(self, copy: RunFolder) -> None:
        selection = json.loads(copy.selection.read_text())
        del selection["per_example"]
        copy.selection.write_text(json.dumps(selection))
        with pytest.raises(LogError, match="lacks 'per_example': the run is of another version; train again"):
            evaluate_run(RunFolder.open(copy.path))

    def test_whose_configuration_has_other_keys_say_so(self, copy: RunFolder) -> None:
        copy.config.write_text(copy.config.read_text() + "\n[training.convergence.old]\nkey = 1\n")
        with pytest.raises(LogError, match="old: unknown key; the run is damaged, or of another version: train again"):
            evaluate_run(RunFolder.open(copy.path))
