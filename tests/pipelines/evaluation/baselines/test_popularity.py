"""On a log whose truth is popularity alone, every output says first that the model does not beat popularity."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.cli.main import main
from pipelines.evaluation.baselines import fit
from pipelines.evaluation.baselines.fit import INSTALL_LIGHTGBM, fit_baselines
from pipelines.evaluation.compare import compare
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.sources import resolve_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.runs.run import RunFolder
from ranking.metrics.verdict import verdict
from tests.pipelines.evaluation.baselines.conftest import popularity_log

NAMES = ["constant", "popularity", "user_mean", "linear", "lightgbm"]


@pytest.fixture
def baselines(movies_run: RunFolder) -> dict[str, Any]:
    """The entry ``baselines`` of the evaluation that training wrote."""
    return dict(movies_run.load_evaluation()["baselines"])


def test_training_compares_the_model_with_every_baseline(baselines: dict[str, Any]) -> None:
    assert baselines["training_rows"] == baselines["sampled_rows"] == 9600
    assert {task: list(entries) for task, entries in baselines["tasks"].items()} == {"liked": NAMES, "rating": NAMES}
    liked, rating = baselines["tasks"]["liked"], baselines["tasks"]["rating"]
    assert liked["constant"]["auc"]["baseline"] == 0.5
    assert liked["popularity"]["auc"]["baseline"] > liked["user_mean"]["auc"]["baseline"] + 0.1
    assert liked["popularity"]["auc"]["better"] != "model"
    assert rating["constant"]["r2"]["baseline"] == pytest.approx(0, abs=0.01)
    assert rating["popularity"]["r2"]["baseline"] > 0.3
    assert rating["popularity"]["rmse"]["better"] != "model"
    for entries in baselines["tasks"].values():
        for metrics in entries.values():
            for entry in metrics.values():
                low, high = entry["interval"]
                assert low <= entry["difference"] <= high
                assert entry["difference"] == pytest.approx(entry["model"] - entry["baseline"], abs=1e-6)


def test_popularity_is_the_smoothed_mean_of_the_training_rows(movies_run: RunFolder) -> None:
    (scorer,) = resolve_scorers(movies_run.path)
    fitted = fit_baselines(scorer)
    assert not isinstance(fitted, str)
    table = popularity_log()[:9600]
    liked, movie = np.asarray(table["liked"]), np.asarray(table["movie_id"])
    prior = fitted.items.prior(0)
    expected = [(liked[movie == m].sum() + prior * liked.mean()) / ((movie == m).sum() + prior) for m in range(9)]
    hashes = fit.hash_column(table["movie_id"].combine_chunks())
    first = [hashes[movie == m][0] for m in range(9)]
    np.testing.assert_allclose(fitted.items.predict(np.array(first), 0, float(liked.mean())), expected, rtol=1e-5)


def test_outputs_say_first_that_the_model_does_not_beat_popularity(
    movies_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(movies_run.path)]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    baselines = movies_run.load_evaluation()["baselines"]
    assert first == verdict(baselines)[0]
    assert first.startswith("liked: ")
    assert baselines["tasks"]["liked"]["popularity"]["auc"]["better"] != "model"
    assert "popularity" in first
    assert main(["compare", str(movies_run.path), str(movies_run.path)]) == 0
    output = capsys.readouterr().out
    assert output.count(first) == 2
    assert "standard deviation of the labels: rating" in output


def test_comparison_has_the_baselines_of_both_models(movies_run: RunFolder, tmp_path: Path) -> None:
    freeze_run(movies_run.path, tmp_path / "bundle")
    run, bundle = (list(resolve_scorers(path)) for path in (movies_run.path, tmp_path / "bundle"))
    entries = compare(run, bundle, baselines=True)["baselines"]
    a, b = entries["a"]["tasks"]["liked"]["popularity"]["auc"], entries["b"]["tasks"]["liked"]["popularity"]["auc"]
    assert a["baseline"] == b["baseline"]
    assert a["difference"] == pytest.approx(b["difference"], abs=1e-5)


def test_bundle_has_no_baselines_but_a_reason(movies_run: RunFolder, tmp_path: Path) -> None:
    freeze_run(movies_run.path, tmp_path / "bundle")
    (scorer,) = resolve_scorers(tmp_path / "bundle")
    logs = movies_run.load_config().logs.path
    omitted = evaluate(scorer, logs, baselines=True)["baselines"]["omitted"]
    assert "is a bundle, which does not contain its training log" in omitted


def test_baselines_without_lightgbm_name_the_command_that_installs_it(
    movies_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit.importlib.util, "find_spec", lambda name: None)
    (scorer,) = resolve_scorers(movies_run.path)
    entries = evaluate(scorer, baselines=True)["baselines"]["tasks"]["liked"]
    assert entries["lightgbm"] == {"omitted": INSTALL_LIGHTGBM}
    assert "auc" in entries["linear"]


def test_baselines_can_be_chosen_or_left_out(movies_run: RunFolder) -> None:
    (scorer,) = resolve_scorers(movies_run.path)
    some = replace(scorer, settings=scorer.settings.model_copy(update={"baselines": ("popularity",)}))
    assert list(evaluate(some, baselines=True)["baselines"]["tasks"]["liked"]) == ["popularity"]
    none = replace(scorer, settings=scorer.settings.model_copy(update={"baselines": ()}))
    assert evaluate(none, baselines=True)["baselines"] == {"omitted": "evaluation.baselines is empty"}


def test_training_log_that_is_gone_is_a_reason(movies_run: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(movies_run.path, tmp_path / "run"))
    (scorer,) = resolve_scorers(copy.path)
    assert scorer.logs is not None
    moved = replace(scorer, logs=scorer.logs.model_copy(update={"path": tmp_path / "gone"}))
    assert "the training log cannot be read" in str(fit_baselines(moved))


def test_linear_model_and_trees_are_fitted_on_a_bounded_sample(
    movies_run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "SAMPLE_ROWS", 1000)
    assert main(["evaluate", str(movies_run.path), "--json"]) == 0
    baselines = json.loads(capsys.readouterr().out)["baselines"]
    assert (baselines["training_rows"], baselines["sampled_rows"]) == (9600, 1000)
    assert baselines["tasks"]["liked"]["linear"]["auc"]["baseline"] > 0.6
