"""What a run folder holds, as far as it does: an unfinished or older run lacks some of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.config.config import Config
from pipelines.runs.run import RunFolder
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import LogError
from ranking.gates.config import SingleTaskConfig

Json = dict[str, Any]


@dataclass(frozen=True)
class History:
    """How one model's training went.

    Attributes:
        tasks: that it learns.
        checks: lines of metrics.jsonl.
        steps: of the whole training.
    """

    tasks: tuple[str, ...]
    checks: list[Json]
    steps: int


@dataclass(frozen=True)
class RunData:
    """A run as plain data; a part that the run lacks is None or empty.

    Attributes:
        path: the run folder.
        config: the run's settings, defaults included.
        config_text: the same as TOML.
        survey: ``survey.json``; of the single-task baseline what those of its runs say together.
        command: ``command.json``.
        selection: ``selection.json``.
        evaluation: ``evaluation.json``.
        histories: one; of the single-task baseline one for each task.
    """

    path: Path
    config: Config
    config_text: str
    survey: Json | None
    command: Json | None
    selection: Json | None
    evaluation: Json | None
    histories: list[History]

    @property
    def single_task(self) -> bool:
        """Whether each task has a model of its own."""
        return isinstance(self.config.model.gate, SingleTaskConfig)

    @property
    def per_example(self) -> bool:
        """Whether the gate decides for each row."""
        gate = self.config.model.gate
        return gate.kind == "attentive" or getattr(gate, "per_example", False)

    @property
    def history(self) -> History | None:
        """The history of the one model that learns all tasks."""
        return None if self.single_task or not self.histories else self.histories[0]


def read_run_data(path: Path) -> RunData:
    """Reads a run folder.

    Raises:
        LogError: it is none, or a file in it is damaged; names the file.
    """
    run = RunFolder(path)
    if not run.config.is_file():
        raise LogError(f"{path} is no run folder: it has no config.toml; make one with 'ranker train'")
    config = run.load_config()
    single = isinstance(config.model.gate, SingleTaskConfig)
    parts = [RunFolder(run.of_task(task)) for task in config.task_names] if single else [run]
    return RunData(
        path=path,
        config=config,
        config_text=_text(run.config),
        survey=_together([found for part in parts if (found := _document(part.survey))]),
        command=_document(run.command),
        selection=_document(run.selection),
        evaluation=_document(run.evaluation),
        histories=[history for part in parts if (history := _history(part, config.training.epochs))],
    )


def _together(surveys: list[Json]) -> Json | None:
    """What the surveys of the same log, each with some of the tasks, say together; None if there is none."""
    if not surveys:
        return None
    first = surveys[0]
    labels = {
        split: {task: label for survey in surveys for task, label in survey["labels"][split].items()}
        for split in first["labels"]
    }
    bad = {why: rows for survey in surveys for why, rows in survey["bad"].items()}
    return {**first, "labels": labels, "bad": bad}


def _history(run: RunFolder, epochs: int) -> History | None:
    checks = list(_lines(run.metrics)) if run.metrics.is_file() else []
    if not checks:
        return None
    last = checks[-1]
    return History(tuple(last["validation"]), checks, round(last["step"] / last["epoch"] * epochs))


def _lines(file: Path) -> Iterable[Json]:
    lines = _text(file).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # being written, or torn when the training was stopped
                return
            raise LogError(f"{file}, line {number}: no JSON; the run is damaged, train again") from None


def _document(file: Path) -> Json | None:
    if not file.is_file():
        return None
    try:
        found: Json = json.loads(_text(file))
    except json.JSONDecodeError:
        raise LogError(f"{file}: no JSON; the run is damaged, train again or remove the file") from None
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = os_error_text(error) if isinstance(error, OSError) else "not UTF-8"
        raise LogError(f"{file}: cannot be read ({why})") from None
