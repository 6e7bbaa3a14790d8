"""Tests of a study with fake trainings: counting, ranking, retries and cleanup."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.config.config import Config, load_config
from pipelines.runs.run import RunFolder
from pipelines.tuning.search_space import BUDGET, suggest
from pipelines.tuning.study import StudyFolder, trial_outcome
from pipelines.tuning.workers import format_summary, run_worker, summarize
from ranking.errors import ConfigError, LogError, OutputError, RankerError
from tests.pipelines.conftest import Shop
from tests.pipelines.tuning.fake_trainings import FakeTraining, check, fake_trainings, training_with_losses


@pytest.fixture
def study(shop: Shop) -> StudyFolder:
    return StudyFolder.create(shop.folder / "study", shop.config())


def outcomes(study: StudyFolder) -> list[str]:
    return [trial_outcome(t) for t in study.trials()]


# Trials.


def test_trial_with_the_lowest_loss_is_the_best(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_trainings(monkeypatch, training_with_losses(3.0), training_with_losses(1.0), training_with_losses(2.0))
    run_worker(study.path, 3)
    assert [t.value for t in study.ranked_trials()] == [1.0, 2.0, 3.0]
    best = study.ranked_trials()[0]
    run = RunFolder(study.run_folder(best.number))
    assert load_config(study.best_file) == load_config(run.config) == study.trial_config(best)


def test_trials_that_are_not_the_best_keep_no_weights(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_trainings(
        monkeypatch,
        training_with_losses(3.0),
        training_with_losses(1.0),
        training_with_losses(2.0),
        training_with_losses(0.5, converged=False),
    )
    run_worker(study.path, 4)
    kept = {n: RunFolder(study.run_folder(n)) for n in range(4)}
    assert [run.best.exists() and run.encoder.exists() for run in kept.values()] == [False, True, False, False]
    assert all(run.config.exists() and run.selection.exists() for run in kept.values())


@pytest.mark.parametrize("selection", [{"converged": False}, {"snapped_codes": 2}])
def test_unconverged_trial_with_the_lowest_loss_is_disregarded(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch, selection: dict[str, Any]
) -> None:
    fake_trainings(monkeypatch, training_with_losses(2.0), training_with_losses(0.1, **selection))
    run_worker(study.path, 2)
    assert outcomes(study) == ["converged", "unconverged"]
    summary = summarize(study)
    assert summary["best"]["loss"] == 2.0
    assert [row["loss"] for row in summary["table"]] == [2.0]
    assert summary["trials"] == {"converged": 1, "unconverged": 1}


@pytest.mark.parametrize(
    "failure", [RankerError("step 3: the loss of click is not finite"), ZeroDivisionError("x"), OSError("disk full")]
)
def test_failed_trial_is_recorded_and_the_study_continues(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    fake_trainings(monkeypatch, failure, training_with_losses(2.0))
    run_worker(study.path, 2)
    assert outcomes(study) == ["failed", "converged"]
    assert str(failure) in study.trials()[0].user_attrs["reason"]
    assert str(failure) in study.run_folder(0).with_suffix(".log").read_text()


def test_trial_with_a_nan_loss_fails(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_trainings(monkeypatch, training_with_losses(math.nan))
    run_worker(study.path, 1)
    assert outcomes(study) == ["failed"]
    assert "no trial converged" in format_summary(summarize(study))
    assert not study.best_file.exists()


def test_worker_with_an_unusable_log_stops(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_trainings(monkeypatch, LogError("log: no such log"), training_with_losses(1.0))
    with pytest.raises(SystemExit):
        run_worker(study.path, 2)
    assert "log: no such log" in capsys.readouterr().err


def test_worker_counts_trials_of_earlier_calls(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_trainings(monkeypatch, training_with_losses(2.0), training_with_losses(1.0), training_with_losses(3.0))
    run_worker(study.path, 1)
    run_worker(study.path, 1)
    assert len(study.trials()) == 1
    run_worker(study.path, 3)
    assert len(study.trials()) == 3


def test_worker_after_its_deadline_starts_no_trial(study: StudyFolder) -> None:
    run_worker(study.path, 1, deadline=0.0)
    assert study.trials() == []


def test_one_worker_samples_the_same_settings_every_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = []
    for name in ("a", "b"):
        fake_trainings(monkeypatch, *[training_with_losses(2.0)] * 3)
        study = StudyFolder.create(shop.folder / name, shop.config())
        run_worker(study.path, 3)
        settings.append([t.params for t in study.trials()])
    assert settings[0] == settings[1]
    assert settings[0][0] != settings[0][1] != settings[0][2]


# Starting configuration.


def test_first_trial_trains_the_starting_configuration(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with values outside of the default ranges: widths of 8, a dropout of 0.1."""
    configs: list[Config] = []

    def record(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        configs.append(config)
        on_check(check(1, 2.0))
        return {}

    start = shop.config(model={"dropout": 0.1}, training={"learning_rate": {"trunk": 0.5}})
    study = StudyFolder.create(shop.folder / "study", start)
    fake_trainings(monkeypatch, *[record] * 4)
    run_worker(study.path, 4)
    assert configs[0] == start
    assert all(config != start for config in configs[1:])
    first, second, *_ = study.trials()
    assert set(second.params) - set(first.params) == {BUDGET}  # the configuration has no budget of its own
    assert load_config(study.best_file) == start
    assert summarize(study)["start"] == {"trial": 0, "outcome": "converged", "loss": 2.0}
    assert "(trial 0) is the best" in study.best_file.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (training_with_losses(2.0), "the starting configuration (trial 0) has validation loss 2.00000"),
        (
            training_with_losses(0.5, converged=False),
            "the starting configuration (trial 0) has the lower validation loss 0.50000, but is unconverged",
        ),
        (RankerError("broken"), "the starting configuration (trial 0) has no validation loss: failed"),
    ],
)
def test_best_configuration_is_compared_with_the_start(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch, start: Any, text: str
) -> None:
    fake_trainings(monkeypatch, start, training_with_losses(1.0))
    run_worker(study.path, 2)
    assert study.best_file.read_text().splitlines()[0] == f"# Trial 1, validation loss 1.00000; {text}"
    assert format_summary(summarize(study)).splitlines()[-1] == f"best: trial 1; {text}"


def test_starting_configuration_is_trained_once_by_several_workers(study: StudyFolder) -> None:
    leases = [study.lease(4, worker) for worker in range(3)]
    assert [lease.values == {} for lease in leases if lease is not None] == [True, False, False]


def test_starting_configuration_of_a_killed_worker_is_retried(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = study.lease(2, 0)
    assert lease is not None
    lease.lock.close()  # as the operating system does when a process dies
    fake_trainings(monkeypatch, training_with_losses(1.0), training_with_losses(2.0))
    run_worker(study.path, 2)
    assert outcomes(study) == ["abandoned", "converged", "converged"]
    assert study.trial_config(study.trials()[1]) == load_config(study.config_file).model_copy(update={"tune": {}})
    assert summarize(study)["start"] == {"trial": 1, "outcome": "converged", "loss": 1.0}


def test_starting_configuration_of_a_study_without_it_is_trained_next(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1.0 did not train it."""
    sampled = study._study.ask()
    suggest(sampled, study.space)
    sampled.set_user_attr("outcome", "converged")
    study._study.tell(sampled, 3.0)
    fake_trainings(monkeypatch, training_with_losses(1.0))
    run_worker(study.path, 2)
    assert summarize(study)["start"] == {"trial": 1, "outcome": "converged", "loss": 1.0}


def test_starting_configuration_is_not_pruned(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        sampled = study._study.ask()
        suggest(sampled, study.space)
        sampled.report(1.0, 1)
        sampled.set_user_attr("outcome", "converged")
        study._study.tell(sampled, 1.0)
    fake_trainings(monkeypatch, training_with_losses(9.0))
    run_worker(study.path, 6)
    assert outcomes(study)[-1] == "converged"


# Pruning.


def outcome_after_five(study: StudyFolder, monkeypatch: pytest.MonkeyPatch, last: FakeTraining) -> str:
    """Return the outcome of a trial that follows five trials with losses 4, 3 at steps 1, 2."""
    fake_trainings(monkeypatch, *[training_with_losses(4.0, 3.0)] * 5, last)
    run_worker(study.path, 6)
    return outcomes(study)[-1]


def test_pruning_stops_a_trial_above_the_median_at_the_same_step(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome_after_five(study, monkeypatch, training_with_losses(4.1, 1.0)) == "pruned"
    assert len(study.ended_trials()) == 6


def test_pruning_keeps_a_trial_below_the_median(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome_after_five(study, monkeypatch, training_with_losses(3.9, 2.9)) == "converged"


def test_pruning_ignores_checks_before_the_final_selection(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        on_check(check(1, 99.0, "selecting"))
        on_check(check(2, 2.0))
        return {}

    assert outcome_after_five(study, monkeypatch, late) == "converged"


def test_pruning_does_not_compare_different_steps(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        on_check(check(77, 99.0))
        return {}

    assert outcome_after_five(study, monkeypatch, elsewhere) == "converged"


def test_pruning_is_off_if_the_meaning_of_a_step_is_tuned(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    config = shop.config(tune={"training.batch_size": [16, 32]})
    study = StudyFolder.create(shop.folder / "study", config)
    assert outcome_after_five(study, monkeypatch, training_with_losses(99.0, 98.0)) == "converged"


# Abandoned trials.


def test_abandoned_trial_is_retried_once_with_the_same_settings(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for expected in (["abandoned"], ["abandoned", "failed"]):
        lease = study.lease(9, 0)
        assert lease is not None
        lease.lock.close()  # as the operating system does when a process dies
        study.run_folder(lease.trial.number).mkdir()
        assert outcomes(study)[: len(expected)] == expected
    fake_trainings(monkeypatch, training_with_losses(1.0))
    run_worker(study.path, 2)  # failed trials count, abandoned ones do not
    assert outcomes(study) == ["abandoned", "failed", "converged"]
    first, second, third = study.trials()
    assert first.params == second.params != third.params
    assert not study.run_folder(0).exists()
    assert len(study.ended_trials()) == 2


def test_trial_that_died_while_recording_its_outcome_is_abandoned(study: StudyFolder) -> None:
    lease = study.lease(2, 0)
    assert lease is not None
    lease.trial.set_user_attr("outcome", "converged")
    lease.lock.close()
    retry = study.lease(2, 0)
    assert retry is not None
    assert outcomes(study)[0] == "abandoned"
    assert retry.trial.params == lease.trial.params


def test_running_trial_is_not_leased_again(study: StudyFolder) -> None:
    lease = study.lease(2, 0)
    assert lease is not None
    second_lease = study.lease(2, 1)
    assert second_lease is not None
    assert second_lease.trial.number != lease.trial.number
    assert study.lease(2, 2) is None


# Study folder.


def test_create_study_of_another_configuration_fails(shop: Shop, study: StudyFolder) -> None:
    assert study.lease(1, 0) is not None
    RunFolder.create(study.run_folder(0), shop.config())
    StudyFolder.create(study.path, shop.config())
    with pytest.raises(ConfigError, match=r"another configuration: model\.experts was 3, now it is 4"):
        StudyFolder.create(study.path, shop.config(model={"experts": 4}))


def test_create_study_below_a_file_fails(shop: Shop) -> None:
    (shop.folder / "file").write_text("mine")
    with pytest.raises(OutputError, match=f"{shop.folder}/file is a file, not a folder"):
        StudyFolder.create(shop.folder / "file" / "study", shop.config())


def test_create_study_of_single_task_models_fails(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="a separate model for each task"):
        StudyFolder.create(shop.folder / "study", shop.config(model={"gate": {"kind": "single_task"}}))


def test_format_summary_names_settings_and_importances(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rate(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        on_check(check(1, math.log(config.training.learning_rate.trunk) ** 2))
        return {}

    fake_trainings(monkeypatch, *[by_rate] * 30)
    run_worker(study.path, 30)
    summary = summarize(study)
    text = format_summary(summary)
    assert text.startswith("trials: ")
    assert sum(summary["trials"].values()) == 30
    assert "learning_rate.trunk" in text.splitlines()[1]
    assert max(summary["importances"], key=summary["importances"].__getitem__) == "training.learning_rate.trunk"
    assert "importance of the settings: learning_rate.trunk" in text
