"""A training run on disk: its files, and how each is written and read."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.config.config import Config, load_config
from pipelines.config.diff import diff_configs
from ranking.artifacts.atomic_files import os_error_text, check_empty
from ranking.errors import ConfigError, LogError, OutputError
from ranking.frozen.calibration import Calibration

CHANGEABLE = ("training.keep_checkpoints", "training.readers", "training.trackers")
"""Settings that may change when a run is resumed, because no weight depends on them."""


class RunFolder:
    """Paths and formats of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.encoder = path / "encoder"
        self.index = path / "index.parquet"
        self.side_encoder = path / "side_encoder"
        self.metrics = path / "metrics.jsonl"
        self.quarantine = path / "quarantine.jsonl"
        self.command = path / "command.json"
        self.survey = path / "survey.json"
        self.selection = path / "selection.json"
        self.calibration = path / "calibration.json"
        self.evaluation = path / "evaluation.json"
        self.report = path / "report.html"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best.safetensors"

    def of_task(self, task: str) -> Path:
        """Where the single-task baseline keeps the run of one task."""
        return self.path / "tasks" / task

    def bad_batch(self, step: int, rank: int) -> Path:
        """Where the batch goes whose loss was not finite."""
        return self.path / f"bad-batch-step-{step}-rank-{rank}.safetensors"

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new run folder with its resolved configuration.

        Raises:
            OutputError: something is there already, or it cannot be written.
        """
        check_empty(path)
        run = cls(path)
        try:
            run.checkpoints.mkdir(parents=True)
            config.write(run.config)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({os_error_text(error)})") from None
        return run

    @classmethod
    def resumed(cls, path: Path, config: Config) -> RunFolder:
        """The folder of a run that was interrupted, however early; a new one if it had not begun.

        Raises:
            OutputError: the run was begun with another configuration, or the folder holds something else.
        """
        run = cls(path)
        if not run.config.is_file():
            draft = path / ".config.toml.draft"
            if run.checkpoints.is_dir() and set(path.glob("*")) <= {run.checkpoints, draft}:  # ended while it was made
                draft.unlink(missing_ok=True)
                run.checkpoints.rmdir()
            return cls.create(path, config)
        other = [key for key, *_ in diff_configs(run.load_config(), config) if key not in CHANGEABLE]
        if other:
            raise OutputError(
                f"{path} was begun with another {', '.join(other)}: --resume goes on with what is in {run.config}; "
                "give the same configuration, or name another folder"
            )
        return run

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keeps other processes from training in this folder; ends with this process, however it ends.

        Raises:
            OutputError: another process does.
        """
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(f"{self.path}: another process trains in this folder; name another one") from None
            yield
        finally:
            os.close(descriptor)

    @property
    def finished(self) -> bool:
        """Whether its training is over and told."""
        return self.selection.is_file()

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
        if not (trained and run.finished):
            raise LogError(f"{path}: training has not finished; go on with 'ranker train … --run {path} --resume'")
        return run

    def load_config(self) -> Config:
        """The configuration that the run was trained with.

        Raises:
            LogError: it cannot be read.
        """
        try:
            return load_config(self.config)
        except ConfigError as error:
            raise LogError(f"{error}; the run is damaged, or of another version: train again") from None

    def load_selection(self) -> dict[str, Any]:
        """``selection.json``."""
        return _read(self.selection)

    def load_calibration(self) -> Calibration:
        """``calibration.json``; of a run without one, a calibration that changes nothing.

        Raises:
            LogError: it is damaged.
        """
        if not self.calibration.exists():
            return Calibration()
        try:
            return Calibration.from_json(_read(self.calibration))
        except ValueError as error:  # no JSON, or no calibration
            raise LogError(f"{self.calibration}: damaged ({error}); train again") from None

    def load_evaluation(self) -> dict[str, Any]:
        """``evaluation.json``."""
        return _read(self.evaluation)

    def log(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl.

        Raises:
            OutputError: it cannot be written.
        """
        try:
            with self.metrics.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise self.unwritable(self.metrics, error) from None

    def unwritable(self, file: Path, error: Exception) -> OutputError:
        """Why a training ends that cannot write a file, and how it goes on."""
        why = os_error_text(error) if isinstance(error, OSError) else str(error)
        return OutputError(
            f"{file}: cannot be written ({why}); free space, then give the same command with --resume: it goes on from "
            "the last checkpoint"
        )

    def forget_after(self, step: int) -> None:
        """Takes out of metrics.jsonl what comes after a step; a torn last line too.

        Raises:
            OutputError: it cannot be written.
        """
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        draft = self.metrics.with_suffix(".draft")
        try:
            draft.write_text("".join(f"{line}\n" for line in kept))
            draft.replace(self.metrics)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self.unwritable(self.metrics, error) from None


def _read(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data
