"""Trainings that learn the predictions of earlier runs beside the labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from pipelines.cli.main import main
from pipelines.config.config import Config, load_config
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from pipelines.training.model_factory import load_model, read_position_encoder
from pipelines.training.teachers import Teachers, open_teachers
from pipelines.training.warm_start import WarmStart
from ranking.errors import ConfigError, LogError, UsageError
from ranking.model.mmoe import MMoE
from tests.pipelines.conftest import Shop

if TYPE_CHECKING:
    from tests.conftest import Once

POSITION: dict[str, Any] = {"side_tower": {"features": ["position"]}}


ONE_CHECK = {"checks_per_epoch": 1}


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """The log of 200 rows on which the teachers were trained."""
    shop.write(shop.table(200))
    return shop


@pytest.fixture(scope="module")
def shared_teachers(once: Once) -> list[RunFolder]:
    """Two runs on 200 rows that differ in seed and gate; read only."""

    def make(folder: Path) -> None:
        shop = Shop(folder)
        shop.write(shop.table(200))
        train(shop.config(training=ONE_CHECK), folder / "one")
        other = shop.config(training={**ONE_CHECK, "seed": 1}, model={"gate": {"kind": "softmax"}})
        train(other, folder / "other")

    folder = once("teachers", make)
    return [RunFolder.open(folder / name) for name in ("one", "other")]


@pytest.fixture
def teachers(shop: Shop, shared_teachers: list[RunFolder]) -> list[RunFolder]:
    """Copies of the shared teachers whose configurations name the log of the shop; a test may change both."""
    return [with_config(run, shop.folder / run.path.name, logs=shop.config().logs) for run in shared_teachers]


def with_config(run: RunFolder, folder: Path, **sections: Any) -> RunFolder:
    """Return a copy of a run whose configuration has other sections."""
    copy = RunFolder.open(shutil.copytree(run.path, folder))
    run.load_config().model_copy(update=sections).write(copy.config)
    return copy


def with_teachers(config: Config, *folders: Path) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"teachers": folders})})


def batch_of(run: RunFolder, shop: Shop) -> LabeledBatch:
    """The whole log, encoded."""
    config = run.load_config()
    encoder, position = load_model(run, config)[1], read_position_encoder(run, config)
    (chunk,) = list(shop.reader().scan())
    return LabeledBatch.from_table(chunk.rows, encoder, position)


def test_targets_are_half_label_half_mean_prediction(shop: Shop, teachers: list[RunFolder]) -> None:
    batch = DeviceBatch.from_labeled(batch_of(teachers[0], shop))
    tasks = teachers[0].load_config().tasks
    targets = Teachers(teachers, tasks, torch.device("cpu")).targets(batch)
    with torch.no_grad():
        outputs = [load_model(run, run.load_config())[0](batch.inputs) for run in teachers]
    mean = (outputs[0] + outputs[1]) / 2
    predictions = torch.stack([mean[:, 0].sigmoid(), mean[:, 1]], 1)
    assert [task.kind for task in tasks] == ["binary", "regression"]
    assert bool(batch.labels.isnan().any())
    torch.testing.assert_close(targets, (batch.labels + predictions) / 2, equal_nan=True)


def test_targets_follow_the_convention_of_training(shop: Shop) -> None:
    """Negatives are not yet corrected, and the position of each row counts instead of its mean."""
    table = shop.table(200)
    shop.write(table.append_column("position", table["tab"]))
    schema = shop.schema.model_dump(exclude_none=True)
    tasks = [task | {"keep_negatives": 0.5} if task["kind"] == "binary" else task for task in schema["tasks"]]
    features = [*schema["features"], {"name": "position", "kind": "numeric", "owner": "context"}]
    shop.schema = type(shop.schema).model_validate(schema | {"tasks": tasks, "features": features})
    config = shop.config(model={"side_tower": {"features": ["position"]}}, training=ONE_CHECK)
    run = train(config, shop.folder / "run")
    batch = DeviceBatch.from_labeled(batch_of(run, shop))
    model: MMoE = load_model(run, config)[0]
    targets = Teachers([run], config.tasks, torch.device("cpu")).targets(batch)
    assert model.side is not None
    assert batch.position_inputs is not None
    with torch.no_grad():
        logits = model(batch.inputs) - model.correction - model.side.mean + model.side(batch.position_inputs)
    assert float(model.correction[0]) == pytest.approx(np.log(0.5))
    torch.testing.assert_close(targets[:, 0], (batch.labels[:, 0] + logits[:, 0].sigmoid()) / 2, equal_nan=True)


def test_distill_trains_with_the_configuration_of_the_first_run(
    shop: Shop, shared_teachers: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shop.folder / "student"
    names = [str(run.path) for run in shared_teachers]
    assert main(["distill", *names, "--run", str(folder), "--set", "training.seed=7"]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith(f"{folder}\n")
    assert "starts from the seed of" not in printed.err
    assert f"the log was prepared in {shared_teachers[0].path}" in printed.err
    config = load_config(folder / "config.toml")
    assert config.training.teachers == tuple(run.path for run in shared_teachers)
    assert config.model == shared_teachers[0].load_config().model
    assert config.training.seed == 7
    assert "distill" in (folder / "command.json").read_text()
    plain = train(shop.config(training={**ONE_CHECK, "seed": 7}), shop.folder / "plain")
    student, other = (load_model(run, run.load_config())[0] for run in (RunFolder.open(folder), plain))
    assert not torch.equal(student.output.weight, other.output.weight)


def test_training_whose_targets_are_the_labels_equals_one_without_teachers(
    shop: Shop, teachers: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Teachers replace what the losses compare with, and nothing else."""
    targets, seen = Teachers.targets, []

    def keep_labels(self: Teachers, batch: DeviceBatch) -> torch.Tensor:
        seen.append(targets(self, batch))
        return batch.labels

    plain = train(shop.config(), shop.folder / "plain")
    monkeypatch.setattr(Teachers, "targets", keep_labels)
    same = train(with_teachers(shop.config(), *(run.path for run in teachers)), shop.folder / "same")
    assert seen
    assert same.metrics.read_text().count("\n") == plain.metrics.read_text().count("\n")
    losses = [[json.loads(line)["train"] for line in run.metrics.read_text().splitlines()] for run in (plain, same)]
    assert losses[0] == losses[1]


def test_teacher_of_other_tasks_is_rejected_before_the_log_is_read(shop: Shop, teachers: list[RunFolder]) -> None:
    first, *others = shop.config().tasks
    sampled, heavy = (first.model_copy(update=change) for change in ({"keep_negatives": 0.5}, {"weight": 2.0}))
    runs = [
        with_config(teachers[0], shop.folder / name, tasks=(task, *others))
        for name, task in (("sampled", sampled), ("heavy", heavy))
    ]
    shutil.rmtree(shop.log)
    message = f"{runs[0].path} cannot be combined with .*: tasks.click.keep_negatives is 0.5 instead of 1.0; use"
    with pytest.raises(ConfigError, match=message) as caught:
        train(with_teachers(shop.config(), runs[0].path), shop.folder / "run")
    assert "\n" not in str(caught.value)
    with pytest.raises(LogError):  # The weight of a task changes no prediction's meaning: only the log is missing.
        train(with_teachers(shop.config(), runs[1].path), shop.folder / "run")
    assert not (shop.folder / "run").exists()


def test_single_task_teacher_is_rejected(shop: Shop) -> None:
    teacher = train(shop.config(model={"gate": {"kind": "single_task"}}, training=ONE_CHECK), shop.folder / "teacher")
    with pytest.raises(ConfigError, match="contains an independent model for each task: use one of them"):
        train(with_teachers(shop.config(), teacher.path), shop.folder / "run")


def test_teacher_of_other_rows_is_rejected(shop: Shop, teachers: list[RunFolder]) -> None:
    shop.write(shop.table(150, seed=4))
    with pytest.raises(ConfigError, match="encodes ids and numbers differently from") as caught:
        train(with_teachers(shop.config(), teachers[0].path), shop.folder / "run")
    assert str(teachers[0].path) in str(caught.value)


def test_teacher_that_was_continued_from_another_run_is_rejected(shop: Shop, teachers: list[RunFolder]) -> None:
    """Its vocabularies are those of the earlier run with new ids behind them."""
    warm = train(shop.config(training=ONE_CHECK), shop.folder / "warm", warm_start=WarmStart(teachers[0], reopen=False))
    with pytest.raises(ConfigError, match="was continued from another run"):
        train(with_teachers(shop.config(), warm.path), shop.folder / "run")
    assert not (shop.folder / "run").exists()


def test_finished_training_does_not_need_its_teachers(shop: Shop, teachers: list[RunFolder]) -> None:
    config = with_teachers(shop.config(training=ONE_CHECK), teachers[0].path)
    run = train(config, shop.folder / "run")
    shutil.rmtree(teachers[0].path)
    assert train(config, run.path, resume=True).finished


def test_teacher_may_differ_in_what_does_not_concern_its_inputs(shop: Shop, teachers: list[RunFolder]) -> None:
    teacher = teachers[0].load_config()
    changed = shop.config(logs={"max_bad_rows": 0.5}, tune={"model.experts": {"low": 2, "high": 4}})
    assert changed.tune != teacher.tune
    assert open_teachers(with_teachers(changed, teachers[0].path))[0].path == teachers[0].path


def test_teacher_that_is_named_twice_is_rejected(shop: Shop, teachers: list[RunFolder]) -> None:
    with pytest.raises(UsageError, match="is named twice"):
        train(with_teachers(shop.config(), teachers[0].path, teachers[0].path), shop.folder / "run")


def test_teacher_that_is_no_run_is_rejected(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_teachers(shop.config(), shop.folder / "nowhere")
    with pytest.raises(LogError, match=r"training\.teachers: .*nowhere is not a run folder"):
        train(config, shop.folder / "run")
    assert not (shop.folder / "run").exists()
    config.write(shop.folder / "ranker.toml")
    assert main(["check", str(shop.folder / "ranker.toml")]) == 1
    assert "training.teachers: " in capsys.readouterr().err


def test_teacher_without_a_task_is_rejected_by_its_name(shop: Shop, teachers: list[RunFolder]) -> None:
    first, *others = shop.config().tasks
    run = with_config(teachers[0], shop.folder / "without", tasks=tuple(others))
    with pytest.raises(ConfigError, match=rf"{run.path} cannot be .* tasks\.{first.name} is missing there; use"):
        train(with_teachers(shop.config(), run.path), shop.folder / "run")


def test_distill_with_the_seed_of_a_teacher_says_so(
    shop: Shop, shared_teachers: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    student = str(shop.folder / "student")
    assert main(["distill", str(shared_teachers[1].path), "--run", student, "--set", "evaluation.baselines=[]"]) == 0
    assert f"starts from the seed of {shared_teachers[1].path}; --set training.seed=N" in capsys.readouterr().err


def test_relative_teachers_start_at_the_folder_of_the_configuration(shop: Shop) -> None:
    file = shop.write_config(training={"teachers": ["runs/one", "/runs/other"]})
    assert load_config(file).training.teachers == (shop.folder / "runs/one", Path("/runs/other"))


def test_teachers_of_a_single_task_configuration_are_rejected(shop: Shop) -> None:
    file = shop.write_config(training={"teachers": ["one"]}, model={"gate": {"kind": "single_task"}})
    with pytest.raises(ConfigError, match=r"training\.teachers: single_task trains a model for each task"):
        load_config(file)
