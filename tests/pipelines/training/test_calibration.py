"""Platt and isotonic maps fitted to a validation split."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
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


def drawn(count: int, slope: float, shift: float, seed: int = 0) -> tuple[Array, Array]:
    """Logits, and labels whose true logits are slope · logit + shift."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1.0, 1.5, count)
    return logits, (random.random(count) < sigmoid(slope * logits + shift)).astype(float)


def task(calibration: str) -> Task:
    return Task.model_validate({"name": "click", "kind": "binary", "calibration": calibration})


class TestPlatt:
    def test_finds_slope_and_shift(self) -> None:
        found = fit_platt(*drawn(200_000, 0.6, -0.5))
        assert found is not None
        assert (found.slope, found.shift) == (pytest.approx(0.6, abs=0.02), pytest.approx(-0.5, abs=0.02))

    def test_is_the_maximum_of_the_likelihood_of_its_targets(self) -> None:
        logits, labels = drawn(500, 0.6, -0.5)
        found = fit_platt(logits, labels)
        assert found is not None
        positives, negatives = labels.sum(), (1 - labels).sum()
        target = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        residual = target - sigmoid(found.slope * logits + found.shift)
        assert residual.sum() == pytest.approx(0.0, abs=1e-5)
        assert (residual * logits).sum() == pytest.approx(0.0, abs=1e-5)

    def test_of_separable_rows_is_finite(self) -> None:
        found = fit_platt(np.arange(40.0), (np.arange(40) >= 20).astype(float))
        assert found is not None
        assert 0 < found.slope < 100

    def test_of_scores_that_fall_with_the_label_is_none(self) -> None:
        assert fit_platt(*drawn(2000, -1.0, 0.0)) is None


class TestIsotonic:
    def test_follows_a_curve_that_no_line_follows(self) -> None:
        random = np.random.default_rng(0)
        logits = random.uniform(-3, 3, 100_000)
        truth = np.where(logits < 0, -2.0, logits * 1.5 - 2)
        labels = (random.random(len(logits)) < sigmoid(truth)).astype(float)
        straight = fit_platt(logits, labels)
        assert straight is not None
        errors = [np.abs(sigmoid(f(logits)) - sigmoid(truth)).mean() for f in (fit_isotonic(logits, labels), straight)]
        assert errors[0] < 0.01 < errors[1]

    def test_changes_no_order(self) -> None:
        logits, labels = drawn(3000, 0.7, 0.3)
        logits = np.round(logits, 1)  # with ties
        found = fit_isotonic(logits, labels)(logits)
        assert roc_auc_score(labels, found) == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)

    def test_by_hand(self) -> None:
        """Steps of rate 1/4 (logits 0 and 2) and 3/4 (logit 4), each a knot at its mean logit."""
        logits = np.repeat([0.0, 2.0, 4.0], 40)
        labels = np.concatenate([np.arange(40) % period < share for period, share in ((4, 1), (4, 1), (4, 3))])
        found = fit_isotonic(logits, labels.astype(float))
        assert found.inputs == (1.0, 4.0)
        assert found.outputs == pytest.approx((np.log(1 / 3), np.log(3)))

    def test_joins_steps_of_few_rows_of_a_class_with_their_neighbours(self) -> None:
        """Rates 0, 1/2, 1 of 20 rows each: the first joins the second, and what is left over joins them."""
        found = fit_isotonic(np.repeat([0.0, 1.0, 2.0], 20), np.array([0.0] * 30 + [1.0] * 30))
        assert found.inputs == (1.0,)
        assert found.outputs == (0.0,)

    @given(st.integers(0, 10**6), st.integers(1, 30), st.integers(20, 400))
    @settings(max_examples=150, deadline=None)
    def test_of_any_rows_rises_and_is_finite(self, seed: int, values: int, count: int) -> None:
        random = np.random.default_rng(seed)
        logits = random.integers(0, values, count) / 3 - 2
        labels = (random.random(count) < random.random()).astype(float)
        labels[:10], labels[10:20] = 0.0, 1.0
        found = fit_isotonic(logits, labels)  # its own checks refuse anything else
        assert np.isfinite(found.outputs).all()
        assert found.inputs[0] >= logits.min() - 1e-9
        assert found.inputs[-1] <= logits.max() + 1e-9


class TestFit:
    @pytest.mark.parametrize("kind", ["platt", "isotonic"])
    def test_makes_fresh_rows_likelier(self, kind: str) -> None:
        found = fit_task(task(kind), *drawn(20_000, 0.5, -1.0, seed=1))
        assert found is not None
        assert found.kind == kind
        logits, labels = drawn(20_000, 0.5, -1.0, seed=2)
        before, after = (log_loss(labels, sigmoid(x)) for x in (logits, found(logits)))
        assert after < before - 0.05

    def test_leaves_a_task_alone_that_asks_for_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert fit_task(task("none"), *drawn(1000, 1.0, 0.0)) is None
        assert capsys.readouterr().err == ""

    def test_of_few_positives_falls_back_on_platt(self, capsys: pytest.CaptureFixture[str]) -> None:
        logits = np.linspace(-3, 3, 2000)
        labels = (np.arange(2000) >= 1970).astype(float)
        labels[:5] = 1.0
        found = fit_task(task("isotonic"), logits, labels)
        assert isinstance(found, Platt)
        err = capsys.readouterr().err
        assert "task 'click': the validation split has 35 rows of the rarer class" in err
        assert "isotonic calibration needs 100" in err

    @pytest.mark.parametrize("kind", ["platt", "isotonic"])
    def test_of_fewer_leaves_the_task_uncalibrated(self, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
        labels = np.zeros(500)
        labels[-9:] = 1.0
        assert fit_task(task(kind), np.linspace(-3, 3, 500), labels) is None
        assert "9 rows of the rarer class, calibration needs 10: left uncalibrated" in capsys.readouterr().err

    def test_of_scores_that_fall_with_the_label_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert fit_task(task("platt"), *drawn(2000, -1.0, 0.0)) is None
        assert "do not increase with the label in the validation split: left uncalibrated" in capsys.readouterr().err


@pytest.fixture(scope="module")
def calibrated_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Enough rows for a validation split of a hundred clicks, which come more often in higher tabs."""
    shop = Shop(tmp_path_factory.mktemp("calibrated") / "shop")
    table = shop.table(4000)
    clicks = np.random.default_rng(1).random(4000) < 0.1 + 0.15 * table["tab"].to_numpy()
    shop.write(table.set_column(table.column_names.index("is_click"), "is_click", pa.array(clicks).cast(pa.int8())))
    return shop


def calibrated_run(shop: Shop, kind: str, **sections: Any) -> RunFolder:
    tasks = [{**RAW_SCHEMA["tasks"][0], "calibration": kind}, RAW_SCHEMA["tasks"][1]]
    return train(shop.config(tasks=tasks, **sections), shop.folder / f"run-{kind}-{len(sections)}")


@pytest.fixture(scope="module", params=["platt", "isotonic", "isotonic per example"])
def run(request: pytest.FixtureRequest, calibrated_shop: Shop) -> RunFolder:
    kind, _, routed = request.param.partition(" ")
    gate = {"model": {"gate": {"kind": "dselect_k", "per_example": True}}} if routed else {}
    return calibrated_run(calibrated_shop, kind, **gate)


class TestRuns:
    def test_hold_the_calibration_of_the_tasks_that_ask(self, run: RunFolder) -> None:
        data = json.loads(run.calibration.read_text())
        assert list(data) == ["click"]
        assert data["click"]["kind"] == run.load_config().tasks[0].calibration

    def test_report_the_measures_before_and_after(self, run: RunFolder) -> None:
        found = run.load_evaluation()
        assert list(found["uncalibrated"]) == ["click"]
        before, after = found["uncalibrated"]["click"], found["tasks"]["click"]
        assert before.keys() == after.keys()
        assert before["logloss"] != after["logloss"]
        assert before["auc"] == pytest.approx(after["auc"], abs=1e-12), "a rising map changes no order"

    def test_freeze_to_bundles_that_score_as_they_do(self, run: RunFolder, calibrated_shop: Shop) -> None:
        bundle = run.path.parent / f"{run.path.name}-bundle"
        freeze_run(run.path, bundle)
        ranker = ranking.load(bundle)
        assert ranker.calibration.tasks == run.load_calibration().tasks
        frozen, dense = evaluate(bundle_scorer(ranker, "bundle"), calibrated_shop.log), run.load_evaluation()
        assert frozen["uncalibrated"].keys() == dense["uncalibrated"].keys()
        model, _ = load_model(run, run.load_config())
        rows = ranker.complete(calibrated_shop.table(200).drop_columns(["n"]))
        assert largest_difference(model, ranker, rows, run.load_calibration()) < 1e-5
        assert largest_difference(model, ranker, rows) > 1e-3, "what is checked against the dense model is calibrated"


class TestRunsWithoutCalibration:
    def test_hold_none_and_report_none(self, shared_shop: Shop) -> None:
        run = train(shared_shop.config(), shared_shop.folder / "plain")
        assert not run.calibration.exists()
        assert run.load_calibration().tasks == {}
        assert "uncalibrated" not in run.load_evaluation()

    @pytest.mark.parametrize("text", ["{", '{"click": {"kind": "platt", "slope": -1, "shift": 0}}'])
    def test_whose_file_is_damaged_say_so(self, tmp_path: Any, text: str) -> None:
        run = RunFolder(tmp_path)
        run.calibration.write_text(text)
        with pytest.raises(LogError, match="damaged") as caught:
            run.load_calibration()
        assert str(caught.value).startswith(f"{run.calibration}: ")


def test_scoring_needs_no_scikit_learn() -> None:
    script = (
        "import sys, pipelines.jobs.score, pipelines.evaluation.evaluate, service.app; "
        "sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_task_without_labels_in_validation_is_left_uncalibrated(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    table = shop.table(400)
    labels = [None if row >= 320 else value for row, value in enumerate(table["is_click"].to_pylist())]
    index = table.column_names.index("is_click")
    shop.write(table.set_column(index, "is_click", pa.array(labels, pa.int8())))
    run = calibrated_run(shop, "isotonic")
    assert run.load_calibration().tasks == {}
    assert "has 0 rows of the rarer class" in capsys.readouterr().err
