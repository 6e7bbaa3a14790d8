"""Runs as something to measure. Needs TorchRec, which bundles do without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pipelines.config import Config
from pipelines.evaluation.sources import Source
from pipelines.logs.reader import load_tables
from pipelines.run_folder import RunFolder
from pipelines.training.building import load_model
from ranking.encoding import Encoder
from ranking.gates.config import SingleTaskConfig
from ranking.inputs import Inputs
from ranking.model import Mixture
from ranking.tensors import InputTensors


def run_sources(run: RunFolder) -> Iterator[Source]:
    """The run's model, or of the single-task baseline the model of each task, loaded one after the other.

    Raises:
        LogError: a file of the run is damaged.
    """
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        for task in config.task_names:
            yield from run_sources(RunFolder.open(run.of_task(task)))
    else:
        yield run_source(run, config, *load_model(run, config), run.load_selection())


def run_source(run: RunFolder, config: Config, model: Mixture, encoder: Encoder, trained: Mapping[str, Any]) -> Source:
    """A run whose best weights are loaded, in eval mode.

    Args:
        run: the run.
        config: that it was trained with.
        model: with its best weights.
        encoder: that it was trained with.
        trained: what ``selection.json`` says or is to say.
    """

    def outputs(inputs: Inputs) -> tuple[Tensor, Tensor]:
        done = model.trace(InputTensors.of(inputs))
        return done.outputs, done.routing.weights

    return Source(
        str(run.path),
        encoder,
        load_tables(config.logs, encoder.schema),
        outputs,
        run.load_calibration(),
        model.gate.num_experts,
        trained,
        config.logs.validation_from,
        config.logs,
        config.evaluation,
    )
