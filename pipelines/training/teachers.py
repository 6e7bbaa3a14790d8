"""Knowledge distillation: a training learns the predictions of earlier runs beside the labels.

Hinton et al. 2015, "Distilling the knowledge in a neural network" (arXiv 1503.02531), section 2, at temperature 1.
Cross-entropy is linear in the label, and half the squared errors to a label and to a prediction differ by a constant
from the squared error to their mean. So a label that is half label, half prediction gives half of each loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipelines.config.config import Config
from pipelines.runs.run import RunFolder
from pipelines.runs.same_inputs import require_distinct, require_same_inputs, require_same_settings
from pipelines.training.labeled_batch import DeviceBatch
from pipelines.training.model_factory import load_model
from ranking.errors import ConfigError, LogError, UsageError
from ranking.schema import Task

LABEL_SHARE = 0.5
"""Share of the label in what a training with teachers learns."""


class Teachers:
    """The models of earlier runs with their best weights.

    Args:
        runs: the runs, at least one.
        tasks: tasks in the order of the labels.
        device: device of the training.
    """

    def __init__(self, runs: Sequence[RunFolder], tasks: Sequence[Task], device: torch.device) -> None:
        self._models = [load_model(run, run.load_config())[0].to(device).requires_grad_(False) for run in runs]
        self._binary = torch.tensor([task.kind == "binary" for task in tasks], device=device)

    @torch.no_grad()
    def targets(self, batch: DeviceBatch) -> Tensor:
        """Return what to learn instead of the labels [rows, tasks]: half label, half prediction; NaN where masked.

        The prediction is that of the mean of the outputs, as in a bundle of several runs.
        """
        outputs = []
        for model in self._models:
            output = model(batch.inputs) - model.offset  # A training adds the position of each row, not their mean.
            if model.side is not None:
                output += model.side(batch.position_inputs)
            outputs.append(output)
        mean = torch.stack(outputs).mean(0)
        predictions = torch.where(self._binary, mean.sigmoid(), mean)
        return LABEL_SHARE * batch.labels + (1 - LABEL_SHARE) * predictions


def open_teachers(config: Config) -> list[RunFolder]:
    """Open the teachers of a configuration.

    Raises:
        ConfigError: a teacher has other features or tasks, or another log or position tower; names the setting.
        UsageError: a teacher is named twice.
        LogError: a teacher is not a finished run.
    """
    try:
        runs = [RunFolder.open(path) for path in config.training.teachers]
        require_distinct(runs)
    except (LogError, UsageError) as error:
        raise type(error)(f"training.teachers: {error}") from None
    for run in runs:
        require_same_settings(config, run)
        if run.load_selection()["trained_rows"] > run.load_survey()["rows"]["train"]:
            raise ConfigError(
                f"training.teachers: {run.path} was continued from another run, so that its ids and numbers have "
                "another encoding: name runs that were trained from scratch"
            )
        if run.load_config().model.side_tower != config.model.side_tower:
            raise ConfigError(f"training.teachers: {run.path} has another [model.side_tower]: use the same one")
    return runs


def load_teachers(run: RunFolder, config: Config, device: torch.device) -> Teachers | None:
    """Load the teachers of a run that has fitted its encoders; None if there are none.

    Raises:
        ConfigError: a teacher was trained on other rows.
        LogError: a teacher cannot be read.
    """
    runs = open_teachers(config)
    if not runs:
        return None
    require_same_inputs(run, runs, position=config.position_schema is not None)
    return Teachers(runs, config.tasks, device)
