"""Tests of training the product's configurations for a benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import product
from benchmarks.product import Outcome, format_overrides, measure, tune
from pipelines.config.config import Config, load_config

QUICK = ("counters=[]", "evaluation.bootstrap=0", "training.checks_per_epoch=1", "training.batch_size=512")
RATE = "training.learning_rate.trunk"


@pytest.mark.nightly(short="test_tune_takes_the_lowest_mean_validation_loss_among_the_allowed_trials")
def test_measure_returns_the_results_and_removes_the_run(logs: Path, tmp_path: Path) -> None:
    outcome = measure(load_config(logs / "ranker.toml", QUICK), tmp_path / "run")
    assert outcome.evaluation is not None
    assert set(outcome.evaluation["tasks"]) == set(outcome.selection["tasks"])
    assert outcome.validation_loss == outcome.metrics[-1]["validation_total"]
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly(short="test_tune_takes_the_lowest_mean_validation_loss_among_the_allowed_trials")
def test_training_without_the_test_split_has_no_evaluation_and_the_same_validation_loss(
    logs: Path, tmp_path: Path
) -> None:
    config = load_config(logs / "ranker.toml", QUICK)
    outcome = measure(config.without_test_split(), tmp_path / "run")
    assert outcome.evaluation is None
    assert outcome.validation_loss == measure(config, tmp_path / "run").validation_loss


def test_tune_takes_the_lowest_mean_validation_loss_among_the_allowed_trials(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(config: Config, _: Path) -> Outcome:
        loss = config.training.learning_rate.trunk + 0.001 * config.training.seed
        assert config.logs.test_until == config.logs.test_from, "the test split is not read"
        return Outcome(None, {}, [{"validation_total": loss, "best": True}])

    monkeypatch.setattr(product, "measure", measured)
    trials = [(f"{RATE}=0.2",), (f"{RATE}=0.1",)]
    tuned, records = tune(logs / "ranker.toml", QUICK, trials, [1, 3], tmp_path / "run")
    assert [record["validation_loss"] for record in records] == [0.202, 0.102]
    assert tuned == [*trials[1]]
    tuned, records = tune(
        logs / "ranker.toml", QUICK, trials, [1, 3], tmp_path / "run", lambda outcome: outcome.validation_loss > 0.15
    )
    assert [record["allowed"] for record in records] == [True, False]
    assert tuned == [*trials[0]]


@pytest.mark.parametrize(("overrides", "text"), [((), ""), ((f"{RATE}=0.1", "a=[1, 2]"), "trunk 0.1, a [1, 2]")])
def test_format_overrides_names_the_last_part_of_each_key(overrides: tuple[str, ...], text: str) -> None:
    assert format_overrides(overrides) == text
