"""Tests of ``pipelines.evaluation.evaluate`` with chosen predictions, runs and bundles."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.cli.main import main
from pipelines.config.config import EvaluationConfig
from pipelines.evaluation.evaluate import evaluate, evaluate_all
from pipelines.evaluation.predict import predict
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import LogRange, Scorer, bundle_scorer, run_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.report.page import write_report
from pipelines.runs.run import RunFolder
from ranking.artifacts.atomic_files import write_json
from ranking.errors import LogError, RankerError, UsageError
from ranking.frozen.calibration import Calibration, Platt
from ranking.schema import Task
from tests.pipelines.conftest import QUICK
from tests.pipelines.evaluation.conftest import evaluate_with_new_draws
from tests.support.spilled import values_of

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

MakePredictions = Callable[..., Predictions]

CLICK = Task(name="click", kind="binary")
WATCH = Task(name="watch", kind="regression", transform="log1p")
NAN = float("nan")
BINARY = (
    "auc",
    "gauc",
    "gauc_by_user_day",
    "logloss",
    "normalised_entropy",
    "calibration",
    "calibration_error",
    "ndcg",
)

NUMBER = ("rmse", "mae", "r2")


@pytest.fixture
def metrics_of(make_predictions: MakePredictions) -> Callable[..., dict[str, Any]]:
    """Return a function that computes the metrics of one task from labels and scores."""

    def compute(task: Task, labels: list[float], scores: list[float], **more: Any) -> dict[str, Any]:
        settings = EvaluationConfig(**more.pop("settings", {}))
        evaluation = evaluate_with_new_draws(make_predictions([task], labels, scores, **more), settings)
        json.dumps(evaluation, allow_nan=False)  # undefined values are null, never NaN
        metrics: dict[str, Any] = evaluation["tasks"][task.name]
        return metrics

    return compute


# Binary tasks.


def test_binary_metrics_of_labeled_rows_match_their_definitions(metrics_of: Any) -> None:
    result = metrics_of(CLICK, [1, 0, 1, 0], [0.9, 0.1, 0.4, 0.6], users=[7, 7, 8, 8], requests=[1, 1, 2, 2])
    assert set(result) == {"rows", "positives", *BINARY, *(f"{name}_interval" for name in BINARY)}
    assert (result["rows"], result["positives"]) == (4, 2)
    assert result["auc"] == pytest.approx(0.75)
    assert result["gauc"] == pytest.approx(0.5)  # 1 for user 7, 0 for user 8
    assert result["logloss"] == pytest.approx(-np.mean(np.log([0.9, 0.9, 0.4, 0.4])))
    assert result["normalised_entropy"] == pytest.approx(result["logloss"] / np.log(2))
    assert result["calibration"] == pytest.approx(1.0)
    assert result["ndcg"] == pytest.approx((1 + 1 / np.log2(3)) / 2)


def test_gauc_by_user_day_compares_scores_within_a_day_of_a_user(metrics_of: Any) -> None:
    """Within each day the positive has the higher score; over both days it does not."""
    rows = ([0, 1, 0, 1] * 40, [0.1, 0.2, 0.8, 0.9] * 40)
    users = np.repeat(np.arange(1, 41), 4).tolist()
    result = metrics_of(CLICK, *rows, users=users, days=[5, 5, 6, 6] * 40)
    assert (result["gauc"], result["gauc_by_user_day"]) == (0.75, 1.0)
    assert (result["gauc_interval"], result["gauc_by_user_day_interval"]) == ([0.75, 0.75], [1.0, 1.0])


def test_binary_metrics_with_missing_labels_ignore_these_rows(metrics_of: Any) -> None:
    labeled = metrics_of(CLICK, [1, 0, 1, 0], [0.9, 0.1, 0.4, 0.6])
    masked = metrics_of(CLICK, [1, NAN, 0, 1, NAN, 0], [0.9, 0.99, 0.1, 0.4, 0.01, 0.6])
    values = {"rows", "positives", *BINARY}  # without intervals, because the draws are of all users
    assert {name: masked[name] for name in values} == {name: labeled[name] for name in values}


def test_binary_metrics_lie_inside_their_intervals(metrics_of: Any) -> None:
    random = np.random.default_rng(0)
    scores = random.random(500)
    labels = (random.random(500) < scores).astype(float)
    result = metrics_of(CLICK, labels.tolist(), scores.tolist(), requests=(np.arange(500) // 5 + 1).tolist())
    for name in set(BINARY) - {"gauc", "gauc_by_user_day", "calibration_error", "ndcg"}:
        low, high = result[f"{name}_interval"]
        assert low < result[name] < high
        assert high - low < 0.5 * result[name]


def test_calibration_error_interval_is_not_negative(metrics_of: Any) -> None:
    random = np.random.default_rng(1)
    scores = random.random(60)
    labels = (random.random(60) < scores).astype(float)
    low, high = metrics_of(CLICK, labels.tolist(), scores.tolist())["calibration_error_interval"]
    assert 0 <= low <= high


def test_binary_metrics_without_bootstrap_draws_have_no_intervals(metrics_of: Any) -> None:
    result = metrics_of(CLICK, [1, 0], [0.9, 0.1], settings={"bootstrap": 0})
    assert [value for name, value in result.items() if name.endswith("_interval")] == [None] * len(BINARY)
    assert result["auc"] == 1.0


@pytest.mark.parametrize("label", [0, 1])
def test_binary_metrics_of_one_class_have_no_auc(metrics_of: Any, label: int) -> None:
    result = metrics_of(CLICK, [label] * 3, [0.1, 0.2, 0.3])
    names = ("auc", "gauc", "gauc_by_user_day", "auc_interval", "normalised_entropy")
    assert [result[name] for name in names] == [None] * 5
    assert result["logloss"] is not None


def test_binary_metrics_of_scores_0_and_1_have_a_finite_logloss(metrics_of: Any) -> None:
    assert np.isfinite(metrics_of(CLICK, [1, 0], [0.0, 1.0])["logloss"])


# Regressions.


def test_regression_metrics_use_the_transformed_unit(metrics_of: Any) -> None:
    result = metrics_of(WATCH, [1.0, 2.0, NAN, 3.0], [1.0, 4.0, 99.0, 3.0])
    assert set(result) == {"rows", *NUMBER, *(f"{name}_interval" for name in NUMBER), "label_deviation"}
    assert result["rows"] == 3
    assert result["rmse"] == pytest.approx(np.sqrt(4 / 3))
    assert result["mae"] == pytest.approx(2 / 3)
    assert result["r2"] == pytest.approx(1 - (4 / 3) / (2 / 3))
    assert result["label_deviation"] == pytest.approx(np.std([1, 2, 3]))


def test_regression_metrics_rmse_lies_inside_its_interval(metrics_of: Any) -> None:
    errors = np.random.default_rng(0).standard_normal(400)
    low, high = metrics_of(WATCH, [0.0] * 400, errors.tolist())["rmse_interval"]
    assert low < np.sqrt(np.mean(errors**2)) < high


# All tasks.


def test_metrics_of_a_task_without_labels_count_zero_rows(metrics_of: Any) -> None:
    assert metrics_of(CLICK, [NAN, NAN], [0.1, 0.2]) == {"rows": 0}


def test_evaluation_rows_include_rows_without_labels(make_predictions: MakePredictions) -> None:
    assert evaluate_with_new_draws(make_predictions([CLICK], [1, NAN, 0], [0.5] * 3))["rows"] == 3


def test_evaluation_of_two_tasks_uses_the_column_of_each(make_predictions: MakePredictions) -> None:
    predictions = make_predictions([CLICK, WATCH], [[1, 5.0], [0, 6.0]], [[0.8, 5.0], [0.3, 6.0]])
    result = evaluate_with_new_draws(predictions)["tasks"]
    assert list(result) == ["click", "watch"]
    assert result["click"]["auc"] == 1.0
    assert result["watch"]["rmse"] == 0.0


def test_calibration_curves_contain_binary_tasks_only(make_predictions: MakePredictions) -> None:
    predictions = make_predictions([CLICK, WATCH], [[1, 5.0], [0, 6.0]], [[0.8, 5.0], [0.3, 6.0]])
    curves = evaluate_with_new_draws(predictions)["calibration_curves"]
    assert list(curves) == ["click"]
    assert [set(b) for b in curves["click"]] == [{"predicted", "observed", "low", "high", "rows"}] * 2


def test_evaluation_of_a_calibrated_task_includes_uncalibrated_metrics(make_predictions: MakePredictions) -> None:
    rows = ([1, 0, 0, 0], [0.5, 0.6, 0.4, 0.3])
    plain = evaluate_with_new_draws(make_predictions([CLICK], *rows))
    calibration = Calibration({"click": Platt(slope=1.0, shift=-1.0)})
    result = evaluate_with_new_draws(make_predictions([CLICK], *rows, calibration=calibration))
    assert result["uncalibrated"]["click"] == plain["tasks"]["click"]
    assert result["tasks"]["click"]["calibration"] < plain["tasks"]["click"]["calibration"]
    assert result["calibration_curves"] != plain["calibration_curves"]
    assert "uncalibrated" not in plain
    assert result["uncalibrated_curves"]["click"] == plain["calibration_curves"]["click"]


def test_evaluation_of_a_calibrated_task_without_labels_has_no_curves(make_predictions: MakePredictions) -> None:
    calibration = Calibration({"click": Platt(slope=0.5, shift=0.3)})
    predictions = make_predictions([CLICK], [[NAN]] * 3, [[0.2], [0.4], [0.6]], calibration=calibration)
    result = evaluate_with_new_draws(predictions, EvaluationConfig(bootstrap=3))
    assert result["tasks"]["click"] == result["uncalibrated"]["click"] == {"rows": 0}
    assert result["calibration_curves"] == result["uncalibrated_curves"] == {}


@pytest.fixture(scope="module")
def day(logs: Path) -> Path:
    """Return the files of the test split as a separate log."""
    return logs / "log" / "date=2026-01-10"


# Run and bundle.


@pytest.fixture(scope="module")
def of_whole_log(run: RunFolder, bundle: Path, logs: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """The evaluations of the run and its bundle on the whole log, and what each prints to stderr; read only."""
    results = {}
    for name in ("run", "bundle"):
        with redirect_stderr(StringIO()) as printed:
            scorers = run_scorers(run) if name == "run" else [bundle_scorer(ranking.load(bundle), "bundle")]
            results[name] = (evaluate_all(scorers, logs / "log"), printed.getvalue())
    return results


def without_intervals(bundle: Path) -> Scorer:
    """Return the scorer of a bundle whose evaluation draws no users."""
    scorer = bundle_scorer(ranking.load(bundle), "bundle")
    return dataclasses.replace(scorer, settings=scorer.settings.model_copy(update={"bootstrap": 0}))


def test_run_and_bundle_on_the_same_rows_agree(of_whole_log: dict[str, tuple[dict[str, Any], str]]) -> None:
    dense, frozen = (of_whole_log[name][0] for name in ("run", "bundle"))
    assert dense["rows"] == frozen["rows"] > 0
    assert dense["tasks"].keys() == frozen["tasks"].keys()
    for task, measures in dense["tasks"].items():
        assert measures.keys() == frozen["tasks"][task].keys()
        for metric, value in measures.items():
            # One pair of rows that float32 and float64 order differently is 2e-4 in the mean over a few users.
            tolerance = 5e-4 if metric.startswith(("gauc", "ndcg")) else 1e-4
            assert frozen["tasks"][task][metric] == pytest.approx(value, abs=tolerance), (task, metric)


def test_run_without_logs_is_evaluated_on_its_test_split(run: RunFolder, day: Path) -> None:
    assert evaluate_all(run_scorers(run)) == evaluate_all(run_scorers(run), day) == run.load_evaluation()


def test_bundle_on_a_part_of_its_training_log_says_that_counters_start_empty(
    bundle: Path, day: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(bundle_scorer(ranking.load(bundle), "bundle"), day)
    (message,) = [line for line in capsys.readouterr().err.splitlines() if "counters" in line and "start empty" in line]
    assert "ends at 2026-01-10T23:" in message


def test_log_without_a_forgotten_user_is_not_said_to_start_empty(
    bundle: Path, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(logs / "log", tmp_path / "log")
    (user,) = pq.read_table(logs / "log" / "date=2026-01-01", columns=["user_id"], partitioning=None)["user_id"][:1]
    assert main(["forget", user.as_py(), "--log", str(tmp_path / "log")]) == 0
    capsys.readouterr()
    evaluate(without_intervals(bundle), tmp_path / "log")
    assert "start empty" not in capsys.readouterr().err


def test_gauc_by_user_day_equals_gauc_on_one_day_only(bundle: Path, logs: Path, day: Path) -> None:
    scorer = without_intervals(bundle)
    for log, days in ((day, 1), (logs / "log", 10)):
        predictions = predict(scorer, LogRange(log))
        assert len(np.unique(predictions.days)) == days
        click = evaluate_with_new_draws(predictions, scorer.settings)["tasks"]["click"]
        assert (click["gauc_by_user_day"] == click["gauc"]) == (days == 1)


def test_evaluation_has_the_documented_keys(run: RunFolder) -> None:
    result = evaluate_all(run_scorers(run))
    metrics = {"tasks", "calibration_curves", "slices", "gates"}
    assert set(result) == {"rows", "users", "bad_rows", "intervals", "ndcg_at"} | metrics
    schema = run.load_config().serving_schema
    assert list(result["tasks"]) == schema.task_names
    for task in schema.tasks:
        assert set(BINARY if task.kind == "binary" else NUMBER) <= set(result["tasks"][task.name])


def test_evaluate_on_a_log_without_labels_fails(bundle: Path, day: Path, tmp_path: Path) -> None:
    (file,) = day.iterdir()
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["click"]), tmp_path / "log.parquet")
    with pytest.raises(LogError, match=r"log\.parquet: column 'click' \(label of task 'click'\) is missing"):
        evaluate(bundle_scorer(ranking.load(bundle), "bundle"), tmp_path / "log.parquet")


def test_evaluate_on_a_log_without_rows_fails(bundle: Path, day: Path, tmp_path: Path) -> None:
    (file,) = day.iterdir()
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 0), tmp_path / "log.parquet")
    with pytest.raises(LogError, match=r"there are no rows to evaluate: move logs\.test_from, or specify another log"):
        evaluate(bundle_scorer(ranking.load(bundle), "bundle"), tmp_path / "log.parquet")


def test_bundle_without_training_details_is_evaluated_without_gates(bundle: Path, day: Path) -> None:
    """Bundles of older versions and those of ``ranking.frozen.freeze`` have no training details."""
    ranker = ranking.load(bundle)
    silent = evaluate(bundle_scorer(dataclasses.replace(ranker, details={}), "bundle"), day)
    assert silent["tasks"] == evaluate(bundle_scorer(ranker, "bundle"), day)["tasks"]
    assert silent["gates"] is None


def test_evaluate_on_ids_of_another_type_names_the_file(shop: Shop) -> None:
    table = shop.table(200)
    index = table.column_names.index("user_id")
    file = shop.write(table.set_column(index, "user_id", pa.array([n % 20 for n in range(200)])))
    config = shop.config(**QUICK)
    freeze_run(train(config, shop.folder / "run").path, shop.folder / "bundle")
    shop.write(table)  # user ids are strings here, but integers in the training log
    with pytest.raises(RankerError, match="'user_id': ids must be integers") as caught:
        evaluate(bundle_scorer(ranking.load(shop.folder / "bundle"), "bundle"), shop.log)
    assert str(caught.value).startswith(f"{file}: column ")


def test_evaluate_with_an_unknown_slice_fails(run: RunFolder, bundle: Path, day: Path) -> None:
    message = r"has no slice 'color': choose from user_id, item_id, .*, new_user"
    with pytest.raises(UsageError, match=message):
        evaluate_all(run_scorers(run), slices=["color"])
    with pytest.raises(UsageError, match=message):
        evaluate(bundle_scorer(ranking.load(bundle), "bundle"), day, ["color"])


# A share of the users.


def test_evaluate_a_share_of_the_users_reads_their_rows_only(
    bundle: Path, logs: Path, day: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores, labels and users are those of the same rows in an evaluation of all users."""
    scorer = bundle_scorer(ranking.load(bundle), "bundle")
    everyone = predict(scorer, LogRange(logs / "log"))
    some = predict(scorer, LogRange(logs / "log", users=0.5))
    rows = np.flatnonzero(np.isin(everyone.users, some.users))
    assert 0 < len(some) < len(everyone)
    assert np.array_equal(everyone.positions[rows], some.positions), "every row of a chosen user"
    np.testing.assert_allclose(values_of(everyone.outputs)[rows], values_of(some.outputs), rtol=1e-5, atol=1e-6)
    rows_of_day = int((some.days == some.days.max()).sum())
    evaluation = evaluate(without_intervals(bundle), day, users=0.5)
    assert (evaluation["users"], evaluation["rows"]) == (0.5, rows_of_day)
    assert main(["evaluate", str(bundle), "--logs", str(day), "--users", "0.5"]) == 0
    assert f"{rows_of_day:,} rows of 50 % of the users; " in capsys.readouterr().out


@pytest.mark.nightly(short="test_evaluate_a_share_of_the_users_reads_their_rows_only")
def test_configured_share_of_the_users_applies_to_run_bundle_and_report(copied_run: RunFolder, tmp_path: Path) -> None:
    text = re.sub(r"(?m)^users = 1\.0$", "users = 0.4", copied_run.config.read_text())
    copied_run.config.write_text(text)
    evaluation = evaluate_all(run_scorers(copied_run))
    assert evaluation["users"] == 0.4
    assert evaluate_all(run_scorers(copied_run), users=1.0)["rows"] > evaluation["rows"]
    freeze_run(copied_run.path, tmp_path / "bundle")
    assert bundle_scorer(ranking.load(tmp_path / "bundle"), "bundle").settings.users == 0.4
    write_json(evaluation, copied_run.evaluation)
    text = write_report(copied_run.path).read_text()
    assert f"{evaluation['rows']:,} rows of 40 % of the users." in text


@pytest.mark.nightly(short="test_evaluate_a_share_of_the_users_reads_their_rows_only")
def test_importance_of_a_share_of_the_users_uses_their_rows(
    bundle: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.evaluation.importance.measure.MAX_SHUFFLES", 1)
    evaluation = evaluate(without_intervals(bundle), logs / "log", users=0.1, importance=True)
    assert evaluation["importance"]["rows"] == evaluation["rows"]


def test_evaluate_a_share_without_users_says_what_to_change(bundle: Path, logs: Path) -> None:
    with pytest.raises(
        LogError, match=r"no rows of 0\.0001 % of the users to evaluate: increase evaluation\.users or --users"
    ):
        evaluate(without_intervals(bundle), logs / "log", users=1e-6)


@pytest.mark.parametrize("share", ["0", "1.5", "-0.1", "all", "nan"])
def test_share_of_the_users_out_of_range_is_rejected(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "bundle", f"--users={share}"])
    assert f"argument --users: {share!r} is not a number above 0, at most 1" in capsys.readouterr().err


# Training rows.


def test_evaluate_on_training_rows_warns(of_whole_log: dict[str, tuple[dict[str, Any], str]]) -> None:
    for _, err in of_whole_log.values():
        assert "was trained on data before 2026-01-09 00:00:00, and 4," in err
        assert "the metrics are too good" in err


def test_evaluate_on_later_rows_does_not_warn(
    run: RunFolder, bundle: Path, day: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_all(run_scorers(run))
    evaluate(without_intervals(bundle), day)
    assert "too good" not in capsys.readouterr().err


# Requests.


@pytest.fixture
def shop_with_requests(shop: Shop) -> Shop:
    table = shop.table(400)
    ids = pa.array([None if n % 7 == 0 else f"r{n // 6}" for n in range(400)])
    shop.write(table.append_column("request", ids))
    return shop


def test_request_column_gives_runs_and_bundles_an_ndcg(shop_with_requests: Shop) -> None:
    run = train(
        shop_with_requests.config(
            columns={"request": "request"},
            training={"batch_size": 4096},
            evaluation={"ndcg_at": 3, "slices": ["tab"], "bootstrap": 2},
        ),
        shop_with_requests.folder / "run",
    )
    result = run.load_evaluation()
    assert 0 < result["tasks"]["click"]["ndcg"] <= 1
    assert result["ndcg_at"] == 3
    freeze_run(run.path, shop_with_requests.folder / "bundle")
    frozen = evaluate(
        bundle_scorer(ranking.load(shop_with_requests.folder / "bundle"), "bundle"), shop_with_requests.log
    )
    assert frozen["ndcg_at"] == 3, "a bundle is evaluated with the settings of its run"
    assert "tab" in frozen["slices"]
    assert frozen["tasks"]["click"]["ndcg"] is not None


def test_missing_request_column_is_reported(shop: Shop) -> None:
    file = shop.write(shop.table(200))
    with pytest.raises(LogError, match=r"column 'request' \(the request id\) is missing") as caught:
        train(shop.config(columns={"request": "request"}), shop.folder / "run")
    assert str(caught.value).startswith(str(file))


# Damaged runs.


@pytest.fixture
def copied_run(run: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(run.path, tmp_path / "run")))


def test_run_without_a_selection_key_fails(copied_run: RunFolder) -> None:
    selection = json.loads(copied_run.selection.read_text())
    del selection["per_example"]
    copied_run.selection.write_text(json.dumps(selection))
    with pytest.raises(LogError, match="has no key 'per_example': another version wrote the run; train again"):
        evaluate_all(run_scorers(RunFolder.open(copied_run.path)))


def test_run_with_an_unknown_configuration_key_fails(copied_run: RunFolder) -> None:
    copied_run.config.write_text(copied_run.config.read_text() + "\n[training.convergence.old]\nkey = 1\n")
    with pytest.raises(LogError, match="old: unknown key; the run is damaged or of another version: train again"):
        evaluate_all(run_scorers(RunFolder.open(copied_run.path)))
