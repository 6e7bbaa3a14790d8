"""Content of a run folder as plain data; files of unfinished runs and of older versions may be absent."""

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
from ranking.settings.gate import SingleTaskConfig

Json = dict[str, Any]


@dataclass(frozen=True)
class TrainingHistory:
    """Training history of one model.

    Attributes:
        tasks: names of its tasks.
        checks: lines of ``metrics.jsonl``.
        steps: number of steps of the whole training.
    """

    tasks: tuple[str, ...]
    checks: list[Json]
    steps: int


@dataclass(frozen=True)
class RunData:
    """Content of a run folder; an absent file is None or an empty list.

    Attributes:
        path: the run folder.
        config: configuration of the run, including defaults.
        config_text: text of ``config.toml``.
        survey: ``survey.json``; for a single-task run, the combination of those of its parts.
        command: ``command.json``.
        task_similarity: ``task_similarity.json``.
        selection: ``selection.json``.
        evaluation: ``evaluation.json``.
        histories: one history; for a single-task run, one per task.
    """

    path: Path
    config: Config
    config_text: str
    survey: Json | None
    command: Json | None
    task_similarity: Json | None
    selection: Json | None
    evaluation: Json | None
    histories: list[TrainingHistory]

    @property
    def single_task(self) -> bool:
        """Whether each task has a separate model."""
        return isinstance(self.config.model.gate, SingleTaskConfig)

    @property
    def per_example(self) -> bool:
        """Whether the gate selects experts per row."""
        gate = self.config.model.gate
        return gate.kind == "attentive" or getattr(gate, "per_example", False)

    @property
    def history(self) -> TrainingHistory | None:
        """The history of the multi-task model; None for a single-task run."""
        return None if self.single_task or not self.histories else self.histories[0]


def read_run_data(path: Path) -> RunData:
    """Read a run folder.

    Raises:
        LogError: the path is not a run folder, or one of its files is damaged; names the file.
    """
    run = RunFolder(path)
    if not run.config.is_file():
        raise LogError(f"{path} is not a run folder: it has no config.toml; create one with 'ranker train'")
    config = run.load_config()
    single_task = isinstance(config.model.gate, SingleTaskConfig)
    parts = [RunFolder(run.task_folder(task)) for task in config.task_names] if single_task else [run]
    return RunData(
        path=path,
        config=config,
        config_text=_read_text(run.config),
        survey=_merge_surveys([survey for part in parts if (survey := _read_json(part.survey))]),
        command=_read_json(run.command),
        task_similarity=_read_json(run.task_similarity),
        selection=_read_json(run.selection),
        evaluation=_read_json(run.evaluation),
        histories=[history for part in parts if (history := _read_history(part, config.training.epochs))],
    )


def _merge_surveys(surveys: list[Json]) -> Json | None:
    """Merge surveys of the same log that cover different tasks; None for an empty list."""
    if not surveys:
        return None
    first = surveys[0]
    labels = {
        split: {task: label for survey in surveys for task, label in survey["labels"][split].items()}
        for split in first["labels"]
    }
    bad = {reason: rows for survey in surveys for reason, rows in survey["bad"].items()}
    return {**first, "labels": labels, "bad": bad}


def _read_history(run: RunFolder, epochs: int) -> TrainingHistory | None:
    checks = list(_read_jsonl(run.metrics)) if run.metrics.is_file() else []
    if not checks:
        return None
    last = checks[-1]
    return TrainingHistory(tuple(last["validation"]), checks, round(last["step"] / last["epoch"] * epochs))


def _read_jsonl(file: Path) -> Iterable[Json]:
    lines = _read_text(file).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # the last line is incomplete while training writes it or after a crash
                return
            raise LogError(f"{file}, line {number}: invalid JSON; the run is damaged, train again") from None


def _read_json(file: Path) -> Json | None:
    if not file.is_file():
        return None
    try:
        content: Json = json.loads(_read_text(file))
    except json.JSONDecodeError:
        raise LogError(f"{file}: invalid JSON; the run is damaged, train again or remove the file") from None
    return content


def _read_text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = os_error_text(error) if isinstance(error, OSError) else "not UTF-8"
        raise LogError(f"{file}: cannot be read ({reason})") from None
