"""``ranker tune`` with real trainings, in processes of its own: workers, a kill, going on, and what the best gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from pipelines.config.config import load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.tuning.study import StudyFolder
from pipelines.tuning.workers import work
from tests.pipelines.conftest import Shop

TUNE = {
    "training.convergence.gamma": [1.0],
    "training.convergence.final_gamma": [1e-3, 1.0],  # at 1 the ramp does not make codes binary
    "training.learning_rate.trunk": {"low": 1e-3, "high": 1e-2, "log": True},
    "model.expert_layers": [[4], [8]],
}

EXACT = {
    **TUNE,
    "training.convergence.final_gamma": [1e-3],
    "training.learning_rate.gates": [1e-2],
    "model.gate.entropy_weight": [0.0],
}
"""With these every trial converges."""


def config_file(shop: Shop, rows: int = 300, tune: dict[str, Any] = EXACT, **sections: Any) -> Path:
    shop.write(shop.table(rows))
    file = shop.folder / "ranker.toml"
    shop.config(tune=tune, **sections).write(file)
    return file


def begun(file: Path, study: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipelines.cli", "tune", str(file), "--study", str(study), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise TimeoutError


def test_unconverged_trials_are_disregarded_and_the_best_configuration_trains(shop: Shop, tmp_path: Path) -> None:
    study = StudyFolder.create(tmp_path / "study", load_config(config_file(shop, tune=TUNE)))
    work(study.path, 6)
    seen = set()
    for tried in study.trials():
        run = RunFolder.open(study.run_of(tried.number)) if tried in study.ranked()[:1] else None
        selection = json.loads((study.run_of(tried.number) / "selection.json").read_text())
        exact = selection["converged"] and not selection["snapped_codes"]
        assert (tried in study.ranked()) == exact
        seen.add(exact)
        if run is not None:  # its loss is that of its best check
            checks = [json.loads(line) for line in run.metrics.read_text().splitlines()]
            assert tried.value == [check for check in checks if check["best"]][-1]["validation_total"]
            assert run.best.exists()
    assert seen == {True, False}
    best = load_config(study.best_file)
    assert best.training.convergence.final_gamma == 1e-3
    assert best.logs == study.config.logs
    again = train(best, tmp_path / "run")
    checks = [json.loads(line) for line in again.metrics.read_text().splitlines()]
    assert min(check["validation_total"] for check in checks if check["best"]) == study.ranked()[0].value


@pytest.mark.slow
def test_commands_share_a_study_and_a_later_one_goes_on(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = config_file(shop), tmp_path / "study"
    beside = begun(file, folder, "--trials", "5", "--json")
    assert main(["tune", str(file), "--study", str(folder), "--trials", "5"]) == 0
    out, err = beside.communicate(timeout=300)
    assert beside.returncode == 0, err
    found = json.loads(out)
    study = StudyFolder(folder)
    assert len(study.trials()) == len(study.counted()) == 5
    assert len({json.dumps(t.params, sort_keys=True) for t in study.trials()}) == 5
    capsys.readouterr()
    assert main(["tune", str(file), "--study", str(folder), "--trials", "7", "--json"]) == 0
    later = json.loads(capsys.readouterr().out)
    assert sum(later["trials"].values()) == 7
    assert later["best"]["loss"] <= found["best"]["loss"]


@pytest.mark.slow
def test_a_killed_workers_trial_is_taken_up(shop: Shop, tmp_path: Path) -> None:
    file, folder = config_file(shop, 3000, training={"epochs": 6}), tmp_path / "study"
    command = begun(file, folder, "--trials", "2", "--workers", "2", "--json")
    until(lambda: all((folder / "trials" / n / "metrics.jsonl").exists() for n in "01"))
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(int(workers[0]), signal.SIGKILL)
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    assert "was killed by signal 9" in err
    study = StudyFolder(folder)
    assert len(study.counted()) == 2
    (lost,) = [t for t in study.trials() if t not in study.counted()]
    (taken,) = [t for t in study.trials() if t.user_attrs.get("takes_up") == lost.number]
    assert taken.params == lost.params
    assert sum(json.loads(out)["trials"].values()) == 2


@pytest.mark.slow
def test_a_killed_command_goes_on_when_it_is_given_again(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = config_file(shop, 3000, training={"epochs": 6}), tmp_path / "study"
    command = begun(file, folder, "--trials", "1")
    until(lambda: (folder / "trials" / "0" / "metrics.jsonl").exists())
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    for pid in [command.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    command.communicate()
    assert main(["tune", str(file), "--study", str(folder), "--trials", "1", "--json"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["trials"].values()) == 1
    assert not (folder / "trials" / "0").exists()
    assert (folder / "trials" / "1" / "selection.json").exists()


class TestCommand:
    def test_says_what_is_wrong_with_a_range(
        self, shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = config_file(shop)
        file.write_text(file.read_text().replace('"model.expert_layers"', '"model.expert_layer"'))
        assert main(["tune", str(file), "--study", str(tmp_path / "study")]) == 1
        said = capsys.readouterr().err
        assert said.startswith('ranker: tune."model.expert_layer": [4] cannot be tried: ')
        assert not (tmp_path / "study").exists()

    @pytest.mark.slow
    def test_fails_if_no_trial_converged(self, shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["tune", str(config_file(shop)), "--study", str(tmp_path / "study"), "--timeout", "1"]) == 1
        assert "no trial converged" in capsys.readouterr().err
