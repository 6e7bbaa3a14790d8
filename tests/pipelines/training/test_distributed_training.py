"""Distributed trainings of two ranks that torchrun starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.config.config import load_config
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import load_optimizers
from pipelines.training.distributed import DistContext
from ranking.errors import ConfigError, OutputError
from tests.conftest import GATES, SMALL, Once
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SETTINGS = [*SMALL, "training.batch_size=64", "training.epochs=2"]


def torchrun_train(logs: Path, run: Path, *more: str, settings: Sequence[str] = SETTINGS) -> list[str]:
    """Return the command line of ``ranker train`` on two ranks."""
    sets = [word for setting in settings for word in ("--set", setting)]
    return [*TORCHRUN, "-m", "--", "pipelines.cli", "train", str(logs / "ranker.toml"), "--run", str(run), *sets, *more]


def run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="session")
def two_rank_run(logs: Path, once: Once) -> Path:
    """A folder with the run of two ranks, and its output; read only."""

    def train_two_ranks(folder: Path) -> None:
        folder.mkdir()
        done = run_command(torchrun_train(logs, folder / "run", "--json"))
        assert done.returncode == 0, done.stderr
        (folder / "stdout").write_text(done.stdout)
        (folder / "stderr").write_text(done.stderr)

    return once("two ranks", train_two_ranks)


def test_two_ranks_reach_the_validation_loss_of_one_process(logs: Path, two_rank_run: Path, tmp_path: Path) -> None:
    single = train(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "single")
    runs = (single, RunFolder.open(two_rank_run / "run"))
    lines = [[json.loads(line) for line in run.metrics.read_text().splitlines()] for run in runs]
    assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
    best = [min(line["validation_total"] for line in each if line["phase"] == "selected") for each in lines]
    # The batches contain other rows; different seeds alone differ by up to 2 %.
    assert best[1] == pytest.approx(best[0], rel=0.04)


def test_two_ranks_print_each_message_once(two_rank_run: Path) -> None:
    assert json.loads((two_rank_run / "stdout").read_text())["evaluation"]["rows"] > 0
    stderr = (two_rank_run / "stderr").read_text()
    assert stderr.count("the gates selected") == 1
    assert "Warning" not in stderr


def test_two_ranks_write_a_run_that_one_process_can_freeze(logs: Path, two_rank_run: Path, tmp_path: Path) -> None:
    freeze_run(two_rank_run / "run", tmp_path / "bundle")  # verifies that frozen and dense scores are equal
    log = pq.read_table(next((logs / "log").rglob("*.parquet"))).slice(0, 5)
    assert ranking.load(tmp_path / "bundle").score(log).num_rows == 5


def test_two_ranks_continue_with_the_state_of_the_optimizers(logs: Path, two_rank_run: Path, tmp_path: Path) -> None:
    earlier = RunFolder.open(two_rank_run / "run")
    settings = [*SETTINGS, "logs.train_from=2026-01-07T00:00:00"]
    done = run_command(torchrun_train(logs, tmp_path / "run", "--from", str(earlier.path), settings=settings))
    assert done.returncode == 0, done.stderr
    before, after = load_optimizers(earlier), load_optimizers(RunFolder.open(tmp_path / "run"))
    tables = [name for name in before if name.startswith("adagrad.")]
    assert {"adagrad.user_id", "adagrad.item_id"} <= set(tables)
    for name in tables:
        assert bool((after[name][: len(before[name])] >= before[name]).all()), name
    step = "optimiser.model.towers.layers.0.weight.step"
    assert float(after[step]) >= float(before[step]) > 0


def test_two_ranks_have_identical_weights_with_any_gate(logs: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("train_on_ranks.py")
    gates = ["dselect_k", "dselect_k per example budget", "gumbel_softmax", "attentive"]
    options = ["training.loss_weighting=uncertainty", "training.ranking_loss.weight=0.5"]
    settings = [*SETTINGS, "training.epochs=1", *options]
    trainings = [" ".join([*settings, *GATES[gate]]) for gate in gates]
    done = run_command([*TORCHRUN, str(script), str(logs / "ranker.toml"), str(tmp_path), *trainings])
    assert done.stdout.count("all ranks have the same weights") == len(gates), done.stderr
    assert done.returncode == 0, done.stderr


def test_two_ranks_with_an_odd_batch_size_raise_a_config_error(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.jobs.train.init_distributed", lambda: nullcontext(DistContext(world_size=2)))
    message = "training.batch_size = 63 is the total over all 2 ranks: choose a multiple of 2"
    with pytest.raises(ConfigError, match=message):
        train(load_config(logs / "ranker.toml", [*SETTINGS, "training.batch_size=63"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


LONG_SETTINGS = (*SETTINGS, "training.epochs=300")


def test_killed_rank_stops_all_ranks_and_one_process_resumes(logs: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    group = subprocess.Popen(
        torchrun_train(logs, run.path, settings=LONG_SETTINGS), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: any(run.checkpoints.glob("step-*")))
    victim = next(
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_rank(entry, 1, group.pid)
    )
    os.kill(victim, signal.SIGKILL)
    _, stderr = group.communicate(timeout=TIMEOUT_SECONDS)
    assert group.returncode != 0
    assert "rank 0: training stopped because another rank failed" in stderr
    assert "--resume continues from the last checkpoint" in stderr
    step = max(int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*"))
    assert not run.finished

    # A changed configuration is rejected and does not damage the run.
    with pytest.raises(OutputError, match=r"started with another training\.patience"):
        train(load_config(logs / "ranker.toml", [*LONG_SETTINGS, "training.patience=1"]), run.path, resume=True)
    resumed: list[int] = []

    def interrupt_later(line: dict[str, int]) -> None:
        resumed.append(line["step"])
        if len(resumed) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(load_config(logs / "ranker.toml", LONG_SETTINGS), run.path, resume=True, on_check=interrupt_later)
    assert resumed[0] > step
    steps = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
    assert steps == sorted(set(steps))


def test_run_of_one_process_is_resumed_by_two_ranks(logs: Path, tmp_path: Path) -> None:
    def stop(line: dict[str, int]) -> None:
        if line["epoch"] > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "run", on_check=stop)
    done = run_command(torchrun_train(logs, tmp_path / "run", "--resume"))
    assert done.returncode == 0, done.stderr
    assert "resumed at step" in done.stderr
    assert RunFolder.open(tmp_path / "run").load_selection()["converged"]


def _is_rank(process: Path, rank: int, launcher: int) -> bool:
    """Return whether a process is this rank of a launcher."""
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        environment = (process / "environ").read_bytes().split(b"\0")
    except (OSError, IndexError):
        return False
    return parent == launcher and f"RANK={rank}".encode() in environment
