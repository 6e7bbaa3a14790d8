"""Check that runs read a row in the same way, so that their outputs for it can be averaged or learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipelines.config.config import Config
from pipelines.config.diff import diff_configs
from pipelines.runs.run import RunFolder
from ranking.errors import ConfigError, UsageError
from ranking.schema.value_text import value_text
from ranking.settings.gate import SingleTaskConfig

OWN_SECTIONS = ("model", "training", "tune", "evaluation", "serving")
"""Sections of the configuration that may differ between the runs."""
OWN_SETTINGS = ("logs.allow_missing_days", "logs.max_bad_rows")
"""Settings of other sections that may differ, besides the weights of the tasks' losses."""


def require_same_settings(config: Config, run: RunFolder) -> None:
    """Check that a run has the log, the features and the tasks of a configuration.

    Raises:
        ConfigError: it has others, or it contains one model per task; names the setting.
        LogError: the run cannot be read.
    """
    other = run.load_config()
    if isinstance(other.model.gate, SingleTaskConfig):
        raise ConfigError(
            f"{run.path} contains an independent model for each task: use one of them, such as "
            f"{run.task_folder(other.task_names[0])}"
        )
    for name, here, there in diff_configs(config, other):
        is_loss_weight = name.startswith("tasks.") and name.endswith(".weight")
        if not (name.startswith(OWN_SECTIONS) or name in OWN_SETTINGS or is_loss_weight):
            if there is None or here is None:
                difference = f"{name} is missing {'there' if there is None else 'in the others'}"
            else:
                difference = f"{name} is {value_text(there)} instead of {value_text(here)}"
            raise ConfigError(
                f"{run.path} cannot be combined with the other runs: {difference}; use runs with the same log, "
                "features and tasks"
            )


def require_distinct(runs: Sequence[RunFolder]) -> None:
    """Check that no run is named twice.

    Raises:
        UsageError: names the run.
    """
    folders = [run.path.resolve() for run in runs]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UsageError(f"{runs[number].path} is named twice: name each run once")


def require_same_inputs(run: RunFolder, others: Iterable[RunFolder], *, position: bool = False) -> None:
    """Check that runs of equal settings encode rows alike: their log is the same, and so is what they started from.

    Args:
        run: a run that has encoders.
        others: runs to compare with it.
        position: whether the inputs of the position tower matter, too.

    Raises:
        ConfigError: names the run that differs.
    """
    folders = [run.encoder, run.position_encoder] if position else [run.encoder]
    for other in others:
        theirs = [other.encoder, other.position_encoder] if position else [other.encoder]
        is_same = _counts(run) == _counts(other) and all(map(_equal_folders, folders, theirs))
        if not is_same:
            raise ConfigError(
                f"{other.path} encodes ids and numbers differently from {run.path}, because it has other rows or was "
                "continued from another run: train both from scratch on the same log"
            )


def _counts(run: RunFolder) -> dict[str, Any]:
    survey = run.load_survey()
    return {key: survey.get(key) for key in ("rows", "labels", "label_bounds")}


def _equal_folders(first: Path, second: Path) -> bool:
    files, others = (
        {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()} for folder in (first, second)
    )
    return files.keys() == others.keys() and all(
        file.read_bytes() == others[name].read_bytes() for name, file in files.items()
    )
