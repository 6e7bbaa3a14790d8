"""Trainings that are interrupted and resumed."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from pipelines.config.config import Config, load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.errors import OutputError, RankerError
from tests.conftest import GATES
from tests.pipelines.conftest import Shop
from tests.pipelines.killed_ranker import killed_ranker

if TYPE_CHECKING:
    from tests.conftest import Once


class InterruptedTraining(RankerError):
    """Raised by a test to interrupt a training."""


def interrupt_training(config: Config, folder: Path, checks: int, **options: Any) -> None:
    """Train until this check, which is not yet part of a checkpoint."""
    lines = []

    def interrupt(line: dict[str, Any]) -> None:
        lines.append(line)
        if len(lines) == checks:
            raise InterruptedTraining("enough")

    with pytest.raises(InterruptedTraining):
        train(config, folder, on_check=interrupt, **options)


def load_results(
    run: RunFolder,
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Load the best weights, the metrics without the throughput, the selection and the evaluation of the model."""
    metrics = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in metrics:
        del line["rows_per_second"]
    evaluation = run.load_evaluation()
    evaluation.pop("baselines", None)  # only ``ranker train`` adds them
    return load_file(run.best), metrics, run.load_selection(), evaluation


def assert_identical(one: RunFolder, other: RunFolder) -> None:
    (weights, *rest), (other_weights, *other_rest) = load_results(one), load_results(other)
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(value, other_weights[name]) for name, value in weights.items())
    assert rest == other_rest


@pytest.fixture(scope="module")
def toml(shared_shop: Shop) -> Path:
    """A configuration of 10 steps and 8 checks that uses every source of randomness; the selection is at step 6."""
    counters = [{"of": ["user_id"], "labels": ["click"]}]
    training = {"epochs": 2, "oov_dropout": 0.2}
    return shared_shop.write_config(model={"experts": 4, "dropout": 0.1}, training=training, counters=counters)


@pytest.fixture
def config(toml: Path) -> Config:
    return load_config(toml)


@pytest.fixture
def tiny(shared_shop: Shop) -> Config:
    """A configuration that trains in a moment."""
    return shared_shop.config(training={"checks_per_epoch": 2})


@pytest.fixture(scope="module")
def uninterrupted(toml: Path, once: Once) -> RunFolder:
    """An uninterrupted run with DSelect-k; read only."""
    return RunFolder.open(once("uninterrupted run", lambda folder: train(load_config(toml), folder)))


@pytest.fixture
def _checkpoint_at_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint after every check, however long that takes; otherwise, most checks have none."""
    monkeypatch.setattr("pipelines.training.checkpoint.MAX_TIME_FRACTION", math.inf)


@pytest.mark.parametrize(  # 1: before a checkpoint
    "checks", [4, *(pytest.param(checks, marks=pytest.mark.nightly) for checks in (1, 2, 7))]
)
@pytest.mark.usefixtures("_checkpoint_at_each_check")
def test_resume_after_an_interruption_gives_identical_results(
    uninterrupted: RunFolder, config: Config, tmp_path: Path, checks: int
) -> None:
    interrupt_training(config, tmp_path / "run", checks)
    assert_identical(uninterrupted, train(config, tmp_path / "run", resume=True))


@pytest.mark.parametrize(
    ("setting", "checks"),
    [
        pytest.param("training.ranking_loss.weight=2", 3, marks=pytest.mark.nightly),
        pytest.param("model.reading=scaled", 7, marks=pytest.mark.nightly),
        ("model.reading=side_by_side", 7),
    ],
)
@pytest.mark.usefixtures("_checkpoint_at_each_check")
def test_resume_with_another_setting_gives_identical_results(
    toml: Path, tmp_path: Path, setting: str, checks: int
) -> None:
    """The readings are interrupted after the removal of experts."""
    config = load_config(toml, [setting])
    uninterrupted = train(config, tmp_path / "uninterrupted")
    interrupt_training(config, tmp_path / "run", checks)
    assert_identical(uninterrupted, train(config, tmp_path / "run", resume=True))


SHORT = ("dselect_k per example budget", "attentive")
"""Gates that `make test` resumes: one whose training removes experts twice, and one that is distilled.

Dropout draws random numbers in all of them.
"""


@pytest.mark.parametrize(
    "gate",
    [pytest.param(gate, marks=[] if gate in SHORT else pytest.mark.nightly) for gate in GATES if gate != "dselect_k"],
)
@pytest.mark.usefixtures("_checkpoint_at_each_check")
def test_resume_twice_with_any_gate_gives_identical_results(toml: Path, tmp_path: Path, gate: str) -> None:
    config = load_config(toml, GATES[gate])
    uninterrupted = train(config, tmp_path / "uninterrupted")
    for checks, resume in ((2, False), (3, True), (3, True)):  # relative to the checkpoint of the previous check
        interrupt_training(config, tmp_path / "run", checks, resume=resume)
    assert_identical(uninterrupted, train(config, tmp_path / "run", resume=True))


def test_resume_to_the_end_deletes_the_checkpoints(tiny: Config, tmp_path: Path) -> None:
    interrupt_training(tiny, tmp_path / "run", 2)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    run = train(tiny, tmp_path / "run", resume=True)
    assert [path.name for path in run.checkpoints.iterdir()] == ["best.safetensors"]


def test_resume_after_the_last_checkpoint_writes_the_results(
    uninterrupted: RunFolder, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise InterruptedTraining("enough")

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.jobs.train._write_results", crash)
        with pytest.raises(InterruptedTraining):
            train(config, tmp_path / "run")
    assert_identical(uninterrupted, train(config, tmp_path / "run", resume=True))


def test_resume_of_a_single_task_baseline_keeps_finished_tasks(shared_shop: Shop, tmp_path: Path) -> None:
    config = shared_shop.config(model={"gate": {"kind": "single_task"}}, training={"checks_per_epoch": 1})
    run = train(config, tmp_path / "run")
    first, second = (RunFolder(run.task_folder(task)) for task in config.task_names)
    before = first.best.stat().st_mtime_ns
    for file in (run.selection, run.evaluation, second.selection):
        file.unlink()
    train(config, tmp_path / "run", resume=True)
    assert first.best.stat().st_mtime_ns == before
    assert second.finished
    assert run.finished


@pytest.mark.parametrize("limit", [pytest.param(4_000, marks=pytest.mark.nightly), 20_000])
@pytest.mark.usefixtures("capsys")  # stderr must not be a file, which would be full as well
def test_full_disk_raises_an_output_error_and_resume_continues(
    uninterrupted: RunFolder, config: Config, tmp_path: Path, limit: int
) -> None:
    interrupt_training(config, tmp_path / "run", 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # writing larger files fails as on a full disk
    try:
        with pytest.raises(OutputError, match=r"cannot be written .* free space, then run the same .* --resume"):
            train(config, tmp_path / "run", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_identical(uninterrupted, train(config, tmp_path / "run", resume=True))


def test_resume_without_a_run_folder_starts_the_run(tiny: Config, tmp_path: Path) -> None:
    assert train(tiny, tmp_path / "new", resume=True).finished


def test_resume_of_a_finished_run_changes_nothing(
    tiny: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tiny, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    train(tiny, tmp_path / "run", resume=True)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    assert "training has already finished" in capsys.readouterr().err


def test_resume_with_another_configuration_raises_an_error_that_names_the_keys(
    shared_shop: Shop, tiny: Config, tmp_path: Path
) -> None:
    interrupt_training(tiny, tmp_path / "run", 2)
    other = shared_shop.config(model={"experts": 8}, training={"checks_per_epoch": 2, "learning_rate": {"gates": 0.5}})
    with pytest.raises(OutputError, match=r"started with another model\.experts, training\.learning_rate\.gates"):
        train(other, tmp_path / "run", resume=True)


def test_resume_accepts_changed_settings_that_no_weight_depends_on(
    shared_shop: Shop, tiny: Config, tmp_path: Path
) -> None:
    interrupt_training(tiny, tmp_path / "run", 2)
    other = shared_shop.config(training={"checks_per_epoch": 2, "keep_checkpoints": 1})
    assert train(other, tmp_path / "run", resume=True).finished


@pytest.mark.parametrize("draft", [False, True])
def test_resume_of_a_partially_created_folder_starts_the_run(tiny: Config, tmp_path: Path, draft: bool) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    if draft:
        (tmp_path / "run" / ".config.toml.draft").write_text("name = ")
    assert train(tiny, tmp_path / "run", resume=True).finished


def test_resume_of_a_folder_with_other_files_raises_an_error(tiny: Config, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(OutputError, match="never overwritten"):
        train(tiny, tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "changes",
    [pytest.param((66,), marks=pytest.mark.system), pytest.param(range(1, 100, 3), marks=pytest.mark.nightly)],
    ids=str,
)
def test_resume_of_a_killed_process_gives_identical_results(
    uninterrupted: RunFolder, toml: Path, tmp_path: Path, changes: Sequence[int]
) -> None:
    """Protects a run whose process is killed while it writes: change 66 is a part of a checkpoint."""
    with killed_ranker(tmp_path, "pipelines.jobs.train") as ranker:
        for change in changes:
            run = tmp_path / str(change)
            command = ["train", toml, "--run", run, "--set", "evaluation.baselines=[]", "--resume"]
            assert ranker.run(*command, change=change)
            assert not ranker.run(*command)
            assert_identical(uninterrupted, RunFolder.open(run))


def test_second_training_in_the_same_folder_is_rejected(tiny: Config, tmp_path: Path) -> None:
    def train_again(line: dict[str, Any]) -> None:
        with pytest.raises(OutputError, match="another process is training in this folder; name another one"):
            train(tiny, tmp_path / "run", resume=True)
        raise InterruptedTraining("enough")

    with pytest.raises(InterruptedTraining):
        train(tiny, tmp_path / "run", on_check=train_again)
