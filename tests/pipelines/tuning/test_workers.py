"""Tests of ``ranker tune`` with real trainings: workers, killed processes, resuming, and the best configuration."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from pipelines.config.config import Config, load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.tuning.study import StudyFolder
from pipelines.tuning.workers import run_worker, tune
from tests.pipelines.conftest import Shop
from tests.pipelines.tuning.waiting_worker import LEASED, lease_and_wait
from tests.support.waiting import wait_until

TUNE = {
    "training.convergence.gamma": [1.0],
    "training.convergence.final_gamma": [1e-3, 0.9, 1.0],  # near 1 annealing does not make the codes binary
    "training.learning_rate.trunk": {"low": 1e-3, "high": 1e-2, "log": True},
    "model.expert_layers": [[4], [8]],
}

TUNE_CONVERGING = {
    **TUNE,
    "training.convergence.final_gamma": [1e-3],
    "training.learning_rate.gates": [1e-2],
    "model.gate.entropy_weight": [0.0],
}
"""Search space in which every trial converges."""


def config_file(shop: Shop, rows: int = 300, tune: dict[str, Any] = TUNE_CONVERGING, **sections: Any) -> Path:
    shop.write(shop.table(rows))
    file = shop.folder / "ranker.toml"
    shop.config(tune=tune, **sections).write(file)
    return file


def start_command(file: Path, study: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipelines.cli", "tune", str(file), "--study", str(study), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_worker_disregards_unconverged_trials_and_the_best_configuration_trains(shop: Shop, tmp_path: Path) -> None:
    study = StudyFolder.create(tmp_path / "study", load_config(config_file(shop, tune=TUNE)))
    run_worker(study.path, 5)  # Fewer than five converged trials, so that none is pruned.
    seen = set()
    for trial in study.trials():
        run = RunFolder.open(study.run_folder(trial.number)) if trial in study.ranked_trials()[:1] else None
        selection = json.loads((study.run_folder(trial.number) / "selection.json").read_text())
        exact = selection["converged"] and not selection["snapped_codes"]
        assert (trial in study.ranked_trials()) == exact
        seen.add(exact)
        if run is not None:  # the value of the trial is the loss of its best check
            checks = [json.loads(line) for line in run.metrics.read_text().splitlines()]
            assert trial.value == [check for check in checks if check["best"]][-1]["validation_total"]
            assert run.best.exists()
    assert seen == {True, False}
    shared = ["the log was prepared in" in study.run_folder(n).with_suffix(".log").read_text() for n in range(5)]
    assert shared == [False, True, True, True, True]
    best = load_config(study.best_file)
    assert best.training.convergence.final_gamma == 1e-3
    assert best.logs == study.config.logs
    again = train(best, tmp_path / "run")
    checks = [json.loads(line) for line in again.metrics.read_text().splitlines()]
    assert min(check["validation_total"] for check in checks if check["best"]) == study.ranked_trials()[0].value


@pytest.mark.nightly(short="test_killed_worker_is_restarted_and_its_trial_is_retried")
def test_tune_commands_share_a_study_and_a_later_command_continues_it(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = config_file(shop), tmp_path / "study"
    concurrent = start_command(file, folder, "--trials", "5", "--json")
    assert main(["tune", str(file), "--study", str(folder), "--trials", "5"]) == 0
    out, err = concurrent.communicate(timeout=300)
    assert concurrent.returncode == 0, err
    summary = json.loads(out)
    study = StudyFolder(folder)
    assert len(study.trials()) == len(study.ended_trials()) == 5
    assert len({json.dumps(t.params, sort_keys=True) for t in study.trials()}) == 5
    capsys.readouterr()
    assert main(["tune", str(file), "--study", str(folder), "--trials", "7", "--json"]) == 0
    later_summary = json.loads(capsys.readouterr().out)
    assert sum(later_summary["trials"].values()) == 7
    assert later_summary["best"]["loss"] <= summary["best"]["loss"]


@pytest.mark.system
def test_killed_worker_is_restarted_and_its_trial_is_retried(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects a study of which a worker dies while another process runs trials, and that a later command continues."""
    file, folder = config_file(shop), tmp_path / "study"
    messages: list[str] = []
    monkeypatch.setattr("pipelines.tuning.workers.print_status", messages.append)
    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr("pipelines.tuning.workers.run_worker", lease_and_wait)
        command = pool.submit(tune, load_config(file), folder, 3)
        wait_until(lambda: command.done() or (folder / LEASED).exists())
        patch.undo()
        (worker,) = multiprocessing.active_children()
        worker.kill()
        run_worker(folder, 2, worker=1)
        study = command.result()
    assert "worker 0 was killed by signal 9; its trial is retried" in messages
    assert len(study.ended_trials()) == 3
    (abandoned,) = [t for t in study.trials() if t not in study.ended_trials()]
    (retry,) = [t for t in study.trials() if t.user_attrs.get("takes_up") == abandoned.number]
    assert retry.params == abandoned.params
    assert len({json.dumps(t.params, sort_keys=True) for t in study.ended_trials()}) == 3
    monkeypatch.setattr("pipelines.tuning.workers.run_worker", lease_and_wait)  # ends at once if no trial is left
    assert main(["tune", str(file), "--study", str(folder), "--trials", "3", "--json"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["trials"].values()) == 3


@pytest.mark.nightly(short="test_killed_worker_is_restarted_and_its_trial_is_retried")
def test_tune_repeated_after_a_kill_continues_the_study(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = config_file(shop, 3000, training={"epochs": 6}), tmp_path / "study"
    command = start_command(file, folder, "--trials", "1")
    wait_until(lambda: (folder / "trials" / "0" / "metrics.jsonl").exists())
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    for pid in [command.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    command.communicate()
    assert main(["tune", str(file), "--study", str(folder), "--trials", "1", "--json"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["trials"].values()) == 1
    assert not (folder / "trials" / "0").exists()
    assert (folder / "trials" / "1" / "selection.json").exists()


# Tune command.


def test_tune_with_an_invalid_range_names_it(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = config_file(shop)
    file.write_text(file.read_text().replace('"model.expert_layers"', '"model.expert_layer"'))
    assert main(["tune", str(file), "--study", str(tmp_path / "study")]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith('ranker: tune."model.expert_layer": [4] is not a valid value: ')
    assert not (tmp_path / "study").exists()


def test_tune_without_a_converged_trial_fails(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_no_trial(config: Config, folder: Path, trials: int, workers: int, timeout: float, _: Any) -> StudyFolder:
        assert timeout == 1
        return StudyFolder.create(folder, config)

    monkeypatch.setattr("pipelines.tuning.workers.tune", run_no_trial)
    assert main(["tune", str(config_file(shop)), "--study", str(tmp_path / "study"), "--timeout", "1"]) == 1
    assert "no trial converged" in capsys.readouterr().err
