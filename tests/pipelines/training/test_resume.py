"""Trainings that end before they are over, and go on."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipelines.config.config import Config, ServingConfig, load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.errors import OutputError, RankerError
from tests.conftest import GATES, SMALL, Once

SETTINGS = [*SMALL, "training.epochs=2", "model.dropout=0.1"]


class Interrupted(RankerError):
    """What a test raises in the middle of a training."""


def interrupted(config: Config, folder: Path, checks: int, **how: Any) -> None:
    """A training that ends at this check, before that is part of a checkpoint."""
    seen = []

    def look(line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == checks:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        train(config, folder, on_check=look, **how)


def outcome(run: RunFolder) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Best weights, metrics (but the speed), selection and evaluation."""
    metrics = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in metrics:
        del line["rows_per_second"]
    return load_file(run.best), metrics, run.load_selection(), run.load_evaluation()


def assert_same(one: RunFolder, other: RunFolder) -> None:
    (weights, *rest), (other_weights, *other_rest) = outcome(one), outcome(other)
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(value, other_weights[name]) for name, value in weights.items())
    assert rest == other_rest


@pytest.fixture
def small(logs: Path) -> Callable[[str], Config]:
    """Name of a gate in GATES → the configuration of a training with it in which everything random happens."""
    return lambda gate: load_config(logs / "ranker.toml", SETTINGS + GATES[gate])


@pytest.fixture(scope="session")
def whole(logs: Path, once: Once) -> RunFolder:
    """A run with DSelect-k that was never interrupted; read only."""
    config = load_config(logs / "ranker.toml", SETTINGS)
    return RunFolder.open(once("run without a break", lambda folder: train(config, folder)))


class TestInterrupted:
    @pytest.mark.parametrize("checks", [2, 7, 13])
    def test_goes_on_to_the_very_same_weights(
        self, whole: RunFolder, small: Callable[[str], Config], tmp_path: Path, checks: int
    ) -> None:
        interrupted(small("dselect_k"), tmp_path / "run", checks)
        assert_same(whole, train(small("dselect_k"), tmp_path / "run", resume=True))

    @pytest.mark.slow
    @pytest.mark.parametrize("gate", [name for name in GATES if name != "dselect_k"])
    def test_whatever_the_gate(self, small: Callable[[str], Config], tmp_path: Path, gate: str) -> None:
        whole = train(small(gate), tmp_path / "whole")
        for checks in (3, 4, 5):  # counted from where the one before ended
            interrupted(small(gate), tmp_path / "run", checks, resume=checks > 3)
        assert_same(whole, train(small(gate), tmp_path / "run", resume=True))

    def test_leaves_no_checkpoint_once_it_is_over(self, small: Callable[[str], Config], tmp_path: Path) -> None:
        interrupted(small("dselect_k"), tmp_path / "run", 3)
        assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
        run = train(small("dselect_k"), tmp_path / "run", resume=True)
        assert [path.name for path in run.checkpoints.iterdir()] == ["best.safetensors"]

    def test_before_its_first_checkpoint_starts_again(
        self, whole: RunFolder, small: Callable[[str], Config], tmp_path: Path
    ) -> None:
        interrupted(small("dselect_k"), tmp_path / "run", 1)
        assert_same(whole, train(small("dselect_k"), tmp_path / "run", resume=True))

    def test_after_its_last_checkpoint_only_tells(
        self, whole: RunFolder, small: Callable[[str], Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash(*_: object) -> None:
            raise Interrupted("enough")

        with monkeypatch.context() as patched:
            patched.setattr("pipelines.jobs.train._write_results", crash)
            with pytest.raises(Interrupted):
                train(small("dselect_k"), tmp_path / "run")
        assert_same(whole, train(small("dselect_k"), tmp_path / "run", resume=True))

    def test_single_task_goes_on_with_the_task_it_was_at(self, logs: Path, tmp_path: Path) -> None:
        config = load_config(logs / "ranker.toml", [*SETTINGS, "model.gate.kind=single_task"])
        config = config.model_copy(update={"tasks": config.tasks[:2], "serving": ServingConfig()})
        run = train(config, tmp_path / "run")
        first, second = (RunFolder(run.task_folder(task)) for task in config.task_names)
        before = first.best.stat().st_mtime_ns
        for file in (run.selection, run.evaluation, second.selection):
            file.unlink()
        train(config, tmp_path / "run", resume=True)
        assert first.best.stat().st_mtime_ns == before
        assert second.finished
        assert run.finished


class TestFullDisk:
    @pytest.mark.parametrize("limit", [4_000, 20_000])
    @pytest.mark.usefixtures("capsys")  # what is written to stderr must not lie in a file, which would be full too
    def test_ends_with_a_line_and_goes_on_once_there_is_space(
        self, whole: RunFolder, small: Callable[[str], Config], tmp_path: Path, limit: int
    ) -> None:
        interrupted(small("dselect_k"), tmp_path / "run", 9)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # longer files fail as on a disk without space
        try:
            with pytest.raises(OutputError, match=r"cannot be written .* free space, then run the same .* --resume"):
                train(small("dselect_k"), tmp_path / "run", resume=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert_same(whole, train(small("dselect_k"), tmp_path / "run", resume=True))


class TestResume:
    def test_of_nothing_begins(self, small: Callable[[str], Config], tmp_path: Path) -> None:
        assert train(small("dselect_k"), tmp_path / "new", resume=True).finished

    def test_of_a_finished_run_does_nothing(
        self, small: Callable[[str], Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = train(small("dselect_k"), tmp_path / "run")
        before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
        train(small("dselect_k"), tmp_path / "run", resume=True)
        assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
        assert "training has already finished" in capsys.readouterr().err

    def test_with_another_configuration_is_refused_by_name(self, logs: Path, tmp_path: Path) -> None:
        interrupted(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "run", 2)
        other = load_config(logs / "ranker.toml", [*SETTINGS, "training.learning_rate.gates=0.5", "model.experts=8"])
        with pytest.raises(OutputError, match=r"started with another model\.experts, training\.learning_rate\.gates"):
            train(other, tmp_path / "run", resume=True)

    def test_may_change_what_no_weight_depends_on(self, logs: Path, tmp_path: Path) -> None:
        interrupted(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "run", 2)
        other = load_config(logs / "ranker.toml", [*SETTINGS, "training.keep_checkpoints=1"])
        assert train(other, tmp_path / "run", resume=True).finished

    @pytest.mark.parametrize("draft", [False, True])
    def test_of_a_folder_that_was_only_begun_begins(
        self, small: Callable[[str], Config], tmp_path: Path, draft: bool
    ) -> None:
        (tmp_path / "run" / "checkpoints").mkdir(parents=True)
        if draft:
            (tmp_path / "run" / ".config.toml.draft").write_text("name = ")
        assert train(small("dselect_k"), tmp_path / "run", resume=True).finished

    def test_of_a_folder_that_is_no_run_is_refused(self, small: Callable[[str], Config], tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("dear")
        with pytest.raises(OutputError, match="never overwritten"):
            train(small("dselect_k"), tmp_path, resume=True)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def command(logs: Path, run: Path, *more: str) -> list[str]:
    """``ranker train`` as a process of its own."""
    sets = [word for setting in [*SETTINGS, *more] for word in ("--set", setting)]
    return [sys.executable, "-m", "pipelines.cli", "train", str(logs / "ranker.toml"), "--run", str(run), *sets]


def started(logs: Path, run: Path, *more: str) -> subprocess.Popen[bytes]:
    """The command as a process of its own; returns when it has said its first word, since loading takes seconds."""
    words = [*command(logs, run, *more), "--resume"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline()
    return process


@pytest.mark.slow
class TestKilled:
    def test_at_any_moment_goes_on_to_the_very_same_weights(self, logs: Path, tmp_path: Path) -> None:
        first = started(logs, tmp_path / "first")
        begun = time.monotonic()
        first.communicate()
        seconds = time.monotonic() - begun
        random, kills = np.random.default_rng(0), 0
        for _ in range(4):
            process = started(logs, tmp_path / "run")
            try:
                process.communicate(timeout=random.uniform(0.1, 0.6) * seconds)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
        assert kills
        last = started(logs, tmp_path / "run")
        _, told = last.communicate()
        assert last.returncode == 0
        assert b"Traceback" not in told
        assert_same(RunFolder.open(tmp_path / "first"), RunFolder.open(tmp_path / "run"))

    def test_two_processes_never_train_in_one_folder(self, logs: Path, tmp_path: Path) -> None:
        long = "training.epochs=500"
        first = started(logs, tmp_path / "run", long)
        try:
            wait_for(lambda: any((tmp_path / "run" / "checkpoints").glob("step-*")))
            with pytest.raises(OutputError, match="another process is training in this folder; name another one"):
                train(load_config(logs / "ranker.toml", [*SETTINGS, long]), tmp_path / "run", resume=True)
        finally:
            first.kill()
            first.communicate()


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Until it holds; fails if it does not come to hold."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
