"""A training run on disk: its files, and how each is written and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from pipelines import config as configs
from pipelines.config import Config
from ranking.errors import ConfigError, LogError, OutputError
from ranking.files import reason, require_free
from ranking.model import Mixture


class RunFolder:
    """Paths and formats of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.encoder = path / "encoder"
        self.metrics = path / "metrics.jsonl"
        self.quarantine = path / "quarantine.jsonl"
        self.command = path / "command.json"
        self.survey = path / "survey.json"
        self.selection = path / "selection.json"
        self.evaluation = path / "evaluation.json"
        self.report = path / "report.html"
        self.tensorboard = path / "tensorboard"
        self.best = path / "checkpoints" / "best.safetensors"

    def of_task(self, task: str) -> Path:
        """Where the single-task baseline keeps the run of one task."""
        return self.path / "tasks" / task

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new run folder with its resolved configuration.

        Raises:
            OutputError: something is there already, or it cannot be written.
        """
        require_free(path)
        run = cls(path)
        try:
            run.best.parent.mkdir(parents=True)
            config.write(run.config)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({reason(error)})") from None
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run folder whose training has finished.

        Raises:
            LogError: it is none, or its training did not finish.
        """
        run = cls(path)
        if not run.config.is_file():
            raise LogError(f"{path} is no run folder: it has no config.toml; make one with 'ranker train'")
        trained = run.best.is_file() or (path / "tasks").is_dir()
        if not (trained and run.selection.is_file()):
            raise LogError(f"{path}: training has not finished; train again into a new folder")
        return run

    def load_config(self) -> Config:
        """The configuration that the run was trained with.

        Raises:
            LogError: it cannot be read.
        """
        try:
            return configs.load(self.config)
        except ConfigError as error:
            raise LogError(f"{error}; the run is damaged, or of another version: train again") from None

    def load_selection(self) -> dict[str, Any]:
        """``selection.json``."""
        return _read(self.selection)

    def load_evaluation(self) -> dict[str, Any]:
        """``evaluation.json``."""
        return _read(self.evaluation)

    def save_best(self, model: Mixture) -> None:
        """Replaces the best weights, at no moment leaving half of them."""
        draft = self.best.with_suffix(".draft")
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, draft)
        draft.replace(self.best)

    def log(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        with self.metrics.open("a") as stream:
            stream.write(json.dumps(record) + "\n")


def _read(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data
