"""Trainings by several processes, started by torchrun for real."""

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
from pipelines.training.distributed import DistContext
from ranking.errors import ConfigError
from tests.conftest import GATES, SMALL, Once
from tests.pipelines.training.test_resume import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SETTINGS = [*SMALL, "training.batch_size=64", "training.epochs=2"]


def ranks(logs: Path, run: Path, *more: str, settings: Sequence[str] = SETTINGS) -> list[str]:
    """``ranker train`` on two ranks."""
    sets = [word for setting in settings for word in ("--set", setting)]
    return [*TORCHRUN, "-m", "--", "pipelines.cli", "train", str(logs / "ranker.toml"), "--run", str(run), *sets, *more]


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="session")
def together(logs: Path, once: Once) -> Path:
    """A folder with the run of two ranks, and what they told; read only."""

    def train_together(folder: Path) -> None:
        folder.mkdir()
        done = started(ranks(logs, folder / "run", "--json"))
        assert done.returncode == 0, done.stderr
        (folder / "stdout").write_text(done.stdout)
        (folder / "stderr").write_text(done.stderr)

    return once("two ranks", train_together)


class TestTwoRanks:
    def test_train_as_well_as_one_process(self, logs: Path, together: Path, tmp_path: Path) -> None:
        alone = train(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "alone")
        runs = (alone, RunFolder.open(together / "run"))
        lines = [[json.loads(line) for line in run.metrics.read_text().splitlines()] for run in runs]
        assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
        best = [min(line["validation_total"] for line in each if line["phase"] == "selected") for each in lines]
        # other rows meet in a batch, so it is another draw: seeds alone differ by up to 2 %
        assert best[1] == pytest.approx(best[0], rel=0.04)

    def test_tell_once_what_they_did(self, together: Path) -> None:
        assert json.loads((together / "stdout").read_text())["evaluation"]["rows"] > 0
        told = (together / "stderr").read_text()
        assert told.count("the gates selected") == 1
        assert "Warning" not in told

    def test_leave_a_run_that_one_process_freezes(self, logs: Path, together: Path, tmp_path: Path) -> None:
        freeze_run(together / "run", tmp_path / "bundle")  # checks that frozen = dense
        log = pq.read_table(next((logs / "log").rglob("*.parquet"))).slice(0, 5)
        assert ranking.load(tmp_path / "bundle").score(log).num_rows == 5

    def test_hold_the_same_weights_whatever_the_gate(self, logs: Path, tmp_path: Path) -> None:
        script = Path(__file__).with_name("ranks.py")
        gates = ["dselect_k", "dselect_k per example budget", "gumbel_softmax", "attentive"]
        trainings = [" ".join([*SETTINGS, *GATES[gate], "training.loss_weighting=uncertainty"]) for gate in gates]
        done = started([*TORCHRUN, str(script), str(logs / "ranker.toml"), str(tmp_path), *trainings])
        assert done.stdout.count("all ranks hold the same weights") == len(gates), done.stderr
        assert done.returncode == 0, done.stderr

    def test_need_a_batch_that_can_be_divided(
        self, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pipelines.jobs.train.init_distributed", lambda: nullcontext(DistContext(world_size=2)))
        says = "training.batch_size = 63 is the total over all 2 ranks: choose a multiple of 2"
        with pytest.raises(ConfigError, match=says):
            train(load_config(logs / "ranker.toml", [*SETTINGS, "training.batch_size=63"]), tmp_path / "run")
        assert not (tmp_path / "run").exists()


class TestALostRank:
    LONG = (*SETTINGS, "training.epochs=300")

    def test_stops_all_and_the_run_goes_on_with_another_number(self, logs: Path, tmp_path: Path) -> None:
        run = RunFolder(tmp_path / "run")
        group = subprocess.Popen(
            ranks(logs, run.path, settings=self.LONG), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: any(run.checkpoints.glob("step-*")))
        victim = next(
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _is_rank(entry, 1, group.pid)
        )
        os.kill(victim, signal.SIGKILL)
        _, stderr = group.communicate(timeout=60)
        assert group.returncode != 0
        assert "rank 0: training stopped because another rank failed" in stderr
        assert "--resume continues from the last checkpoint" in stderr
        step = max(int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*"))
        assert not run.finished

        settings = [*self.LONG, "training.patience=1"]  # not the same configuration: refused, nothing is lost
        refused = started(ranks(logs, run.path, "--resume", settings=settings))
        assert "started with another training.patience" in refused.stderr
        resumed: list[int] = []

        def look(line: dict[str, int]) -> None:
            resumed.append(line["step"])
            if len(resumed) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(load_config(logs / "ranker.toml", self.LONG), run.path, resume=True, on_check=look)
        assert resumed[0] > step
        steps = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
        assert steps == sorted(set(steps))

    def test_of_one_process_goes_on_with_two(self, logs: Path, tmp_path: Path) -> None:
        def stop(line: dict[str, int]) -> None:
            if line["epoch"] > 0.5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(load_config(logs / "ranker.toml", SETTINGS), tmp_path / "run", on_check=stop)
        done = started(ranks(logs, tmp_path / "run", "--resume"))
        assert done.returncode == 0, done.stderr
        assert "resumed at step" in done.stderr
        assert RunFolder.open(tmp_path / "run").load_selection()["converged"]


def _is_rank(process: Path, rank: int, launcher: int) -> bool:
    """Whether a process is this rank of what the launcher started."""
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        environment = (process / "environ").read_bytes().split(b"\0")
    except (OSError, IndexError):
        return False
    return parent == launcher and f"RANK={rank}".encode() in environment
