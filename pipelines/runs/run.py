"""Run folder: the files of a training run on disk, and how each is written and read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pipelines.config.config import Config, load_config
from pipelines.config.diff import diff_configs
from ranking.artifacts.atomic_files import check_empty, os_error_text, write_errors, write_json
from ranking.errors import ConfigError, LogError, OutputError
from ranking.file_locks import FileLock
from ranking.frozen.calibration import Calibration

RESUMABLE_SETTINGS = (
    "logs.max_bad_rows",
    "training.keep_checkpoints",
    "training.readers",
    "training.trackers",
)
"""Settings that may change when a run is resumed, because no weight depends on them."""

RUN_ENTRIES = (
    "config.toml",
    "command.json",
    "features",
    "counters",
    "encoder",
    "side_encoder",
    "inputs.json",
    "index.parquet",
    "survey.json",
    "task_similarity.json",
    "quarantine.jsonl",
    "metrics.jsonl",
    "metrics.draft",
    "bad-batch-step-*.safetensors",
    "calibration.json",
    "evaluation.json",
    "report.html",
    "tensorboard",
    "checkpoints",
    "tasks",
    ".*.draft",
    ".features-*",
    ".counters-*",
    ".encoder-*",
    ".side_encoder-*",
)
"""Patterns of the files and folders that a run consists of, drafts of interrupted writes included."""


class RunFolder:
    """Paths and file formats of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.config_draft = path / ".config.toml.draft"
        self.features = path / "features"
        self.counters = path / "counters"
        self.encoder = path / "encoder"
        self.inputs = path / "inputs.json"
        self.index = path / "index.parquet"
        self.position_encoder = path / "side_encoder"
        self.metrics = path / "metrics.jsonl"
        self.quarantine = path / "quarantine.jsonl"
        self.command = path / "command.json"
        self.survey = path / "survey.json"
        self.task_similarity = path / "task_similarity.json"
        self.selection = path / "selection.json"
        self.calibration = path / "calibration.json"
        self.evaluation = path / "evaluation.json"
        self.report = path / "report.html"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best.safetensors"

    def task_folder(self, task: str) -> Path:
        """Return the folder of one task's run in a single-task baseline."""
        return self.path / "tasks" / task

    def bad_batch(self, step: int, rank: int) -> Path:
        """Return the file for a batch whose loss is not finite."""
        return self.path / f"bad-batch-step-{step}-rank-{rank}.safetensors"

    @classmethod
    def create(cls, path: Path, config: Config, *, overwrite: bool = False) -> RunFolder:
        """Create a run folder with its resolved configuration.

        Args:
            path: the folder; it must be new or empty.
            config: the configuration.
            overwrite: replace an unfinished run in the folder.

        Raises:
            OutputError: the folder is not empty or cannot be written.
        """
        run = cls(path)
        if run.checkpoints.is_dir() and (run.config.is_file() or run.config_draft.is_file()):
            if overwrite:
                run._remove_unfinished()
            elif not run.finished:
                raise OutputError(
                    f"{path} contains an unfinished run: continue it with --resume, replace it with --overwrite, "
                    "or name another folder"
                )
        check_empty(path)
        with write_errors(path):
            run.checkpoints.mkdir(parents=True)
            config.write(run.config)
        return run

    @classmethod
    def resume(cls, path: Path, config: Config) -> RunFolder:
        """Return the folder of an interrupted run; create it if the run has not begun.

        Raises:
            OutputError: the run was started with another configuration, or the folder contains something else.
        """
        run = cls(path)
        if not run.config.is_file():
            if run.checkpoints.is_dir() and set(path.glob("*")) <= {run.checkpoints, run.config_draft}:
                run.config_draft.unlink(missing_ok=True)  # the run was interrupted while its folder was created
                run.checkpoints.rmdir()
            return cls.create(path, config)
        changed = [key for key, *_ in diff_configs(run.load_config(), config) if key not in RESUMABLE_SETTINGS]
        if changed:
            raise OutputError(
                f"{path} was started with another {', '.join(changed)}: --resume continues with {run.config}; "
                "use the same configuration, name another folder, or replace an unfinished run with --overwrite"
            )
        return run

    def lock(self) -> FileLock:
        """Lock the folder against other training processes; the lock ends with the process.

        Raises:
            OutputError: another process holds the lock.
        """
        try:
            return FileLock(self.path, wait=False)
        except BlockingIOError:
            raise OutputError(f"{self.path}: another process is training in this folder; name another one") from None

    def _remove_unfinished(self) -> None:
        """Delete the files of an unfinished run; the folder remains.

        Raises:
            OutputError: the run is finished, another process is training in the folder, or the folder contains
                something that is not part of a run.
        """
        with self.lock():
            if self.finished:
                raise OutputError(
                    f"{self.path} contains a finished run, which is never overwritten: name another folder"
                )
            entries = sorted(self.path.iterdir())
            for entry in entries:
                if not any(entry.match(pattern) for pattern in RUN_ENTRIES):
                    raise OutputError(f"{entry} is not part of a run: move it away, or name another folder")
            try:
                for entry in entries:
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry)
                    else:
                        entry.unlink()
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be overwritten ({os_error_text(error)})") from None

    @property
    def finished(self) -> bool:
        """Whether the training is finished and its results are written."""
        return self.selection.is_file()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of a finished run.

        Raises:
            LogError: the folder is not a run folder, or the training has not finished.
        """
        run = cls(path)
        if not run.config.is_file():
            raise LogError(f"{path} is not a run folder: it has no config.toml; create one with 'ranker train'")
        trained = run.best.is_file() or (path / "tasks").is_dir()
        if not (trained and run.finished):
            raise LogError(f"{path}: training has not finished; continue with 'ranker train … --run {path} --resume'")
        return run

    def load_config(self) -> Config:
        """Load the configuration that the run was trained with.

        Raises:
            LogError: the file cannot be read.
        """
        try:
            return load_config(self.config, stored=True)
        except ConfigError as error:
            raise LogError(f"{error}; the run is damaged or of another version: train again") from None

    def load_survey(self) -> dict[str, Any]:
        """Load ``survey.json``; a run of an early version has none, which is an empty one.

        Raises:
            LogError: the file is damaged.
        """
        try:
            return _read_json(self.survey)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise LogError(f"{self.survey}: damaged ({error}); train again") from None

    def load_label_bounds(self) -> dict[str, list[float | None]]:
        """Load the ``min`` and ``max`` of each regression, configured or estimated, from ``survey.json``.

        A run of a version without bounds has none.

        Raises:
            LogError: the file is damaged.
        """
        bounds: dict[str, list[float | None]] = self.load_survey().get("label_bounds", {})
        return bounds

    def load_selection(self) -> dict[str, Any]:
        """Load ``selection.json``."""
        return _read_json(self.selection)

    def load_calibration(self) -> Calibration:
        """Load ``calibration.json``; without the file, return a calibration that changes nothing.

        Raises:
            LogError: the file is damaged.
        """
        if not self.calibration.exists():
            return Calibration()
        try:
            return Calibration.from_json(_read_json(self.calibration))
        except ValueError as error:  # neither JSON nor a calibration
            raise LogError(f"{self.calibration}: damaged ({error}); train again") from None

    def load_evaluation(self) -> dict[str, Any]:
        """Load ``evaluation.json``."""
        return _read_json(self.evaluation)

    def add_to_evaluation(self, key: str, part: dict[str, Any]) -> None:
        """Set one entry of ``evaluation.json``, if the run has this file.

        Raises:
            OutputError: the file cannot be written.
        """
        if self.evaluation.exists():
            write_json({**self.load_evaluation(), key: part}, self.evaluation)

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl.

        Raises:
            OutputError: the file cannot be written.
        """
        try:
            with self.metrics.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise self.write_error(self.metrics, error) from None

    def truncate_metrics(self, step: int) -> None:
        """Remove the lines of later steps from metrics.jsonl, and an incomplete last line.

        Raises:
            OutputError: the file cannot be written.
        """
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        draft = self.metrics.with_suffix(".draft")
        try:
            draft.write_text("".join(f"{line}\n" for line in kept))
            draft.replace(self.metrics)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self.write_error(self.metrics, error) from None

    def write_error(self, file: Path, error: Exception) -> OutputError:
        """Return the error for a file that cannot be written, with instructions to continue the training."""
        reason = os_error_text(error) if isinstance(error, OSError) else str(error)
        return OutputError(
            f"{file}: cannot be written ({reason}); free space, then run the same command with --resume: "
            "it continues from the last checkpoint"
        )


def _read_json(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(file.read_text())
    return data
