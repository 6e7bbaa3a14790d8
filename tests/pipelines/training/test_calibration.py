"""Platt and isotonic calibration fitted on a validation split."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

import ranking
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.sources import bundle_scorer
from pipelines.jobs.freeze import freeze_run, largest_difference
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.calibration import fit_isotonic, fit_platt, fit_task
from pipelines.training.model_factory import load_model
from ranking.errors import LogError
from ranking.frozen.calibration import Platt
from ranking.schema import Task
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import Shop

Array = np.ndarray[Any, Any]


def sigmoid(logits: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-logits)))


def draw_rows(count: int, slope: float, shift: float, seed: int = 0) -> tuple[Array, Array]:
    """Draw logits, and labels whose true logits are slope · logit + shift."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1.0, 1.5, count)
    return logits, (random.random(count) < sigmoid(slope * logits + shift)).astype(float)


def make_task(calibration: str) -> Task:
    return Task.model_validate({"name": "click", "kind": "binary", "calibration": calibration})


def test_fit_platt_recovers_slope_and_shift() -> None:
    fitted = fit_platt(*draw_rows(200_000, 0.6, -0.5))
    assert fitted is not None
    assert (fitted.slope, fitted.shift) == (pytest.approx(0.6, abs=0.02), pytest.approx(-0.5, abs=0.02))


def test_fit_platt_maximizes_the_likelihood_of_the_smoothed_targets() -> None:
    logits, labels = draw_rows(500, 0.6, -0.5)
    fitted = fit_platt(logits, labels)
    assert fitted is not None
    positives, negatives = labels.sum(), (1 - labels).sum()
    target = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    residual = target - sigmoid(fitted.slope * logits + fitted.shift)
    assert residual.sum() == pytest.approx(0.0, abs=1e-5)
    assert (residual * logits).sum() == pytest.approx(0.0, abs=1e-5)


def test_fit_platt_of_separable_rows_has_a_finite_slope() -> None:
    fitted = fit_platt(np.arange(40.0), (np.arange(40) >= 20).astype(float))
    assert fitted is not None
    assert 0 < fitted.slope < 100


def test_fit_platt_with_a_negative_slope_returns_none() -> None:
    assert fit_platt(*draw_rows(2000, -1.0, 0.0)) is None


def test_fit_isotonic_follows_a_curve_better_than_platt() -> None:
    random = np.random.default_rng(0)
    logits = random.uniform(-3, 3, 100_000)
    truth = np.where(logits < 0, -2.0, logits * 1.5 - 2)
    labels = (random.random(len(logits)) < sigmoid(truth)).astype(float)
    platt = fit_platt(logits, labels)
    assert platt is not None
    errors = [np.abs(sigmoid(f(logits)) - sigmoid(truth)).mean() for f in (fit_isotonic(logits, labels), platt)]
    assert errors[0] < 0.01 < errors[1]


def test_fit_isotonic_preserves_the_order_of_scores() -> None:
    logits, labels = draw_rows(3000, 0.7, 0.3)
    logits = np.round(logits, 1)  # with ties
    fitted = fit_isotonic(logits, labels)(logits)
    assert roc_auc_score(labels, fitted) == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)


def test_fit_isotonic_places_one_knot_per_step() -> None:
    """The steps have rate 1/4 (logits 0 and 2) and 3/4 (logit 4), with a knot at the mean logit."""
    logits = np.repeat([0.0, 2.0, 4.0], 40)
    labels = np.concatenate([np.arange(40) % period < share for period, share in ((4, 1), (4, 1), (4, 3))])
    fitted = fit_isotonic(logits, labels.astype(float))
    assert fitted.inputs == (1.0, 4.0)
    assert fitted.outputs == pytest.approx((np.log(1 / 3), np.log(3)))


def test_fit_isotonic_merges_steps_with_few_rows_of_a_class() -> None:
    """Rates 0, 1/2 and 1 with 20 rows each: the first merges with the second, and the rest merges with both."""
    fitted = fit_isotonic(np.repeat([0.0, 1.0, 2.0], 20), np.array([0.0] * 30 + [1.0] * 30))
    assert fitted.inputs == (1.0,)
    assert fitted.outputs == (0.0,)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(20, 400))
def test_fit_isotonic_of_any_rows_is_finite_and_within_the_logits(seed: int, values: int, count: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.integers(0, values, count) / 3 - 2
    labels = (random.random(count) < random.random()).astype(float)
    labels[:10], labels[10:20] = 0.0, 1.0
    fitted = fit_isotonic(logits, labels)  # Isotonic validates that its knots increase
    assert np.isfinite(fitted.outputs).all()
    assert fitted.inputs[0] >= logits.min() - 1e-9
    assert fitted.inputs[-1] <= logits.max() + 1e-9


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_fit_task_reduces_log_loss_on_new_rows(kind: str) -> None:
    fitted = fit_task(make_task(kind), *draw_rows(20_000, 0.5, -1.0, seed=1))
    assert fitted is not None
    assert fitted.kind == kind
    logits, labels = draw_rows(20_000, 0.5, -1.0, seed=2)
    before, after = (log_loss(labels, sigmoid(x)) for x in (logits, fitted(logits)))
    assert after < before - 0.05


def test_fit_task_without_calibration_returns_none_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_task(make_task("none"), *draw_rows(1000, 1.0, 0.0)) is None
    assert capsys.readouterr().err == ""


def test_fit_task_with_few_positives_falls_back_to_platt(capsys: pytest.CaptureFixture[str]) -> None:
    logits = np.linspace(-3, 3, 2000)
    labels = (np.arange(2000) >= 1970).astype(float)
    labels[:5] = 1.0
    fitted = fit_task(make_task("isotonic"), logits, labels)
    assert isinstance(fitted, Platt)
    err = capsys.readouterr().err
    assert "task 'click': the validation split has 35 rows of the rarer class" in err
    assert "isotonic calibration needs 100" in err


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_fit_task_with_too_few_positives_leaves_the_task_uncalibrated(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.zeros(500)
    labels[-9:] = 1.0
    assert fit_task(make_task(kind), np.linspace(-3, 3, 500), labels) is None
    assert "9 rows of the rarer class, calibration needs 10: not calibrated" in capsys.readouterr().err


def test_fit_task_with_decreasing_scores_logs_that_the_task_is_uncalibrated(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_task(make_task("platt"), *draw_rows(2000, -1.0, 0.0)) is None
    assert "do not increase with the label in the validation split: not calibrated" in capsys.readouterr().err


@pytest.fixture(scope="module")
def calibrated_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A log with a hundred clicks in its validation split; clicks are more frequent in higher tabs."""
    shop = Shop(tmp_path_factory.mktemp("calibrated") / "shop")
    table = shop.table(4000)
    clicks = np.random.default_rng(1).random(4000) < 0.1 + 0.15 * table["tab"].to_numpy()
    shop.write(table.set_column(table.column_names.index("is_click"), "is_click", pa.array(clicks).cast(pa.int8())))
    return shop


def train_calibrated(shop: Shop, kind: str, **sections: Any) -> RunFolder:
    tasks = [{**RAW_SCHEMA["tasks"][0], "calibration": kind}, RAW_SCHEMA["tasks"][1]]
    training = {"batch_size": 64, "checks_per_epoch": 1}
    return train(shop.config(tasks=tasks, training=training, **sections), shop.folder / f"run-{kind}-{len(sections)}")


@pytest.fixture(scope="module", params=["platt", "isotonic", "isotonic per example"])
def run(request: pytest.FixtureRequest, calibrated_shop: Shop) -> RunFolder:
    kind, _, routed = request.param.partition(" ")
    gate = {"model": {"gate": {"kind": "dselect_k", "per_example": True}}} if routed else {}
    return train_calibrated(calibrated_shop, kind, **gate)


def test_run_contains_the_calibration_of_configured_tasks_only(run: RunFolder) -> None:
    data = json.loads(run.calibration.read_text())
    assert list(data) == ["click"]
    assert data["click"]["kind"] == run.load_config().tasks[0].calibration


def test_evaluation_contains_metrics_before_and_after_calibration(run: RunFolder) -> None:
    evaluation = run.load_evaluation()
    assert list(evaluation["uncalibrated"]) == ["click"]
    before, after = evaluation["uncalibrated"]["click"], evaluation["tasks"]["click"]
    assert before.keys() == after.keys()
    assert before["logloss"] != after["logloss"]
    assert before["auc"] == pytest.approx(after["auc"], abs=1e-12), "an increasing map preserves the order"


def test_frozen_bundle_scores_like_the_calibrated_dense_model(run: RunFolder, calibrated_shop: Shop) -> None:
    bundle = run.path.parent / f"{run.path.name}-bundle"
    freeze_run(run.path, bundle)
    ranker = ranking.load(bundle)
    assert ranker.calibration.tasks == run.load_calibration().tasks
    frozen, dense = evaluate(bundle_scorer(ranker, "bundle"), calibrated_shop.log), run.load_evaluation()
    assert frozen["uncalibrated"].keys() == dense["uncalibrated"].keys()
    model, _ = load_model(run, run.load_config())
    rows = ranker.complete(calibrated_shop.table(200).drop_columns(["n"]))
    assert largest_difference(model, ranker, rows, run.load_calibration()) < 1e-5
    assert largest_difference(model, ranker, rows) > 1e-3, "the comparison must include the calibration"


def test_run_without_calibration_writes_no_calibration_file(shared_shop: Shop) -> None:
    run = train(shared_shop.config(), shared_shop.folder / "plain")
    assert not run.calibration.exists()
    assert run.load_calibration().tasks == {}
    assert "uncalibrated" not in run.load_evaluation()


@pytest.mark.parametrize("text", ["{", '{"click": {"kind": "platt", "slope": -1, "shift": 0}}'])
def test_load_calibration_of_a_damaged_file_raises_a_log_error(tmp_path: Any, text: str) -> None:
    run = RunFolder(tmp_path)
    run.calibration.write_text(text)
    with pytest.raises(LogError, match="damaged") as caught:
        run.load_calibration()
    assert str(caught.value).startswith(f"{run.calibration}: ")


def test_train_without_validation_labels_leaves_the_task_uncalibrated(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    table = shop.table(400)
    labels = [None if row >= 320 else value for row, value in enumerate(table["is_click"].to_pylist())]
    index = table.column_names.index("is_click")
    shop.write(table.set_column(index, "is_click", pa.array(labels, pa.int8())))
    run = train_calibrated(shop, "isotonic")
    assert run.load_calibration().tasks == {}
    assert "has 0 rows of the rarer class" in capsys.readouterr().err
