"""A study's bookkeeping, with trainings that are made up: what counts, what is best, what is taken up, what is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.config import Config, load_config
from pipelines.runs.run import RunFolder
from pipelines.tuning import trial
from pipelines.tuning.study import StudyFolder, outcome
from pipelines.tuning.workers import summary, table, work
from ranking.errors import ConfigError, LogError, OutputError, RankerError
from tests.pipelines.conftest import Shop

Ends = Callable[[Config, Callable[[dict[str, Any]], None]], dict[str, Any]]


def check(step: int, loss: float, phase: str = "selected") -> dict[str, Any]:
    return {"step": step, "phase": phase, "validation_total": loss, "best": phase == "selected"}


def made_up(monkeypatch: pytest.MonkeyPatch, *ends: Ends | Exception) -> None:
    """Trainings that end like this, one after the other."""
    left: Iterator[Ends | Exception] = iter(ends)

    def train(config: Config, folder: Path, *, on_check: Callable[[dict[str, Any]], None]) -> RunFolder:
        end = next(left)
        run = RunFolder.create(folder, config)
        run.encoder.mkdir()
        run.best.write_text("weights")
        if isinstance(end, Exception):
            raise end
        run.selection.write_text(json.dumps({"converged": True, "snapped_codes": 0, **end(config, on_check)}))
        return run

    monkeypatch.setattr(trial, "train", train)


def ending(*losses: float, **selection: Any) -> Ends:
    def end(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        for step, loss in enumerate(losses, start=1):
            on_check(check(step, loss))
        return selection

    return end


@pytest.fixture
def study(shop: Shop) -> StudyFolder:
    return StudyFolder.create(shop.folder / "study", shop.config())


def outcomes(study: StudyFolder) -> list[str]:
    return [outcome(t) for t in study.trials()]


class TestTrials:
    def test_of_the_lowest_loss_is_the_best(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        made_up(monkeypatch, ending(3.0), ending(1.0), ending(2.0))
        work(study.path, 3)
        assert [t.value for t in study.ranked()] == [1.0, 2.0, 3.0]
        best = study.ranked()[0]
        run = RunFolder(study.run_of(best.number))
        assert load_config(study.best_file) == load_config(run.config) == study.settings(best)

    def test_of_losing_trials_keep_no_weights(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        made_up(monkeypatch, ending(3.0), ending(1.0), ending(2.0), ending(0.5, converged=False))
        work(study.path, 4)
        kept = {n: RunFolder(study.run_of(n)) for n in range(4)}
        assert [run.best.exists() and run.encoder.exists() for run in kept.values()] == [False, True, False, False]
        assert all(run.config.exists() and run.selection.exists() for run in kept.values())

    @pytest.mark.parametrize("selection", [{"converged": False}, {"snapped_codes": 2}])
    def test_that_did_not_converge_are_disregarded_however_good(
        self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch, selection: dict[str, Any]
    ) -> None:
        made_up(monkeypatch, ending(2.0), ending(0.1, **selection))
        work(study.path, 2)
        assert outcomes(study) == ["converged", "unconverged"]
        found = summary(study)
        assert found["best"]["loss"] == 2.0
        assert [row["loss"] for row in found["table"]] == [2.0]
        assert found["trials"] == {"converged": 1, "unconverged": 1}

    @pytest.mark.parametrize(
        "failure",
        [RankerError("step 3: the loss of click is not finite"), ZeroDivisionError("x"), OSError("disk full")],
    )
    def test_that_fail_are_recorded_and_others_go_on(
        self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch, failure: Exception
    ) -> None:
        made_up(monkeypatch, failure, ending(2.0))
        work(study.path, 2)
        assert outcomes(study) == ["failed", "converged"]
        assert str(failure) in study.trials()[0].user_attrs["reason"]
        assert str(failure) in study.run_of(0).with_suffix(".log").read_text()

    def test_whose_loss_is_nan_fail(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        made_up(monkeypatch, ending(math.nan))
        work(study.path, 1)
        assert outcomes(study) == ["failed"]
        assert "no trial converged" in table(summary(study))
        assert not study.best_file.exists()

    def test_stop_if_the_log_cannot_be_used(
        self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made_up(monkeypatch, LogError("log: no such log"), ending(1.0))
        with pytest.raises(SystemExit):
            work(study.path, 2)
        assert "log: no such log" in capsys.readouterr().err

    def test_are_counted_in_total(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        made_up(monkeypatch, ending(2.0), ending(1.0), ending(3.0))
        work(study.path, 1)
        work(study.path, 1)
        assert len(study.trials()) == 1
        work(study.path, 3)
        assert len(study.trials()) == 3

    def test_do_not_begin_after_the_time(self, study: StudyFolder) -> None:
        work(study.path, 1, until=0.0)
        assert study.trials() == []

    def test_of_one_worker_try_the_same_settings_each_time(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = []
        for name in ("a", "b"):
            made_up(monkeypatch, *[ending(2.0)] * 3)
            study = StudyFolder.create(shop.folder / name, shop.config())
            work(study.path, 3)
            tried.append([t.params for t in study.trials()])
        assert tried[0] == tried[1]
        assert tried[0][0] != tried[0][1] != tried[0][2]


class TestPruning:
    def after_five(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch, last: Ends) -> str:
        """How a trial ends that follows five with losses 4, 3 at steps 1, 2."""
        made_up(monkeypatch, *[ending(4.0, 3.0)] * 5, last)
        work(study.path, 6)
        return outcomes(study)[-1]

    def test_stops_what_is_worse_than_the_median_at_the_same_step(
        self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.after_five(study, monkeypatch, ending(4.1, 1.0)) == "pruned"
        assert len(study.counted()) == 6

    def test_leaves_what_is_better(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.after_five(study, monkeypatch, ending(3.9, 2.9)) == "converged"

    def test_does_not_compare_before_the_choice_is_final(
        self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def late(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
            on_check(check(1, 99.0, "selecting"))
            on_check(check(2, 2.0))
            return {}

        assert self.after_five(study, monkeypatch, late) == "converged"

    def test_does_not_compare_different_steps(self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        def elsewhere(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
            on_check(check(77, 99.0))
            return {}

        assert self.after_five(study, monkeypatch, elsewhere) == "converged"

    def test_is_off_where_a_step_does_not_mean_the_same(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        config = shop.config(tune={"training.batch_size": [16, 32]})
        study = StudyFolder.create(shop.folder / "study", config)
        assert self.after_five(study, monkeypatch, ending(99.0, 98.0)) == "converged"


class TestLostTrials:
    def test_are_taken_up_once_with_the_same_settings(
        self, study: StudyFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for expected in (["lost"], ["lost", "failed"]):
            claim = study.claim(9, 0)
            assert claim is not None
            claim.lock.close()  # as the system does when a process dies
            study.run_of(claim.trial.number).mkdir()
            assert outcomes(study)[: len(expected)] == expected
        made_up(monkeypatch, ending(1.0))
        work(study.path, 2)  # the failed one counts, the lost one does not
        assert outcomes(study) == ["lost", "failed", "converged"]
        first, second, third = study.trials()
        assert first.params == second.params != third.params
        assert not study.run_of(0).exists()
        assert len(study.counted()) == 2

    def test_are_those_too_that_died_while_their_end_was_recorded(self, study: StudyFolder) -> None:
        claim = study.claim(2, 0)
        assert claim is not None
        claim.trial.set_user_attr("outcome", "converged")
        claim.lock.close()
        again = study.claim(2, 0)
        assert again is not None
        assert outcomes(study)[0] == "lost"
        assert again.trial.params == claim.trial.params

    def test_are_not_those_that_run(self, study: StudyFolder) -> None:
        claim = study.claim(2, 0)
        assert claim is not None
        other = study.claim(2, 1)
        assert other is not None
        assert other.trial.number != claim.trial.number
        assert study.claim(2, 2) is None


class TestFolder:
    def test_of_another_configuration_is_refused(self, shop: Shop, study: StudyFolder) -> None:
        StudyFolder.create(study.path, shop.config())
        with pytest.raises(ConfigError, match=r"study of another configuration: model\.experts was 3, now it is 4"):
            StudyFolder.create(study.path, shop.config(model={"experts": 4}))
        with pytest.raises(ConfigError, match=r"tune\.model\.dropout was None"):
            StudyFolder.create(study.path, shop.config(tune={"model.dropout": [0.1]}))

    def test_with_trials_of_something_else_is_refused(self, shop: Shop) -> None:
        (shop.folder / "study" / "trials" / "mine").mkdir(parents=True)
        with pytest.raises(OutputError, match=r"holds trials but no config\.toml"):
            StudyFolder.create(shop.folder / "study", shop.config())

    def test_below_a_file_is_refused(self, shop: Shop) -> None:
        (shop.folder / "file").write_text("mine")
        with pytest.raises(OutputError, match=f"{shop.folder}/file is a file, not a folder"):
            StudyFolder.create(shop.folder / "file" / "study", shop.config())

    def test_of_single_tasks_is_refused(self, shop: Shop) -> None:
        with pytest.raises(ConfigError, match="a model for each task"):
            StudyFolder.create(shop.folder / "study", shop.config(model={"gate": {"kind": "single_task"}}))


def test_the_table_names_settings_and_what_mattered(study: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rate(config: Config, on_check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        on_check(check(1, math.log(config.training.learning_rate.trunk) ** 2))
        return {}

    made_up(monkeypatch, *[by_rate] * 12)
    work(study.path, 12)
    found = summary(study)
    text = table(found)
    assert text.splitlines()[0] == "trials: 12 converged" if "pruned" not in found["trials"] else "pruned" in text
    assert "learning_rate.trunk" in text.splitlines()[1]
    assert max(found["importances"], key=found["importances"].__getitem__) == "training.learning_rate.trunk"
    assert "what the loss depended on: learning_rate.trunk" in text
