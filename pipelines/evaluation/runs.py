"""Runs as something to measure. Needs TorchRec, which bundles do without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pipelines import single_task
from pipelines.config import Config
from pipelines.evaluation.measuring import evaluate
from pipelines.evaluation.sources import Source
from pipelines.logs.places import Place
from pipelines.logs.reader import load_tables
from pipelines.run_folder import RunFolder
from pipelines.training.building import load_model
from ranking.encoding import Encoder, Inputs
from ranking.gates.config import SingleTaskConfig
from ranking.model import Mixture


def evaluate_run(run: RunFolder, logs: Place | None = None, slices: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures a run's best weights on its test split, or on the whole of another log.

    Args:
        run: the run.
        logs: the other log.
        slices: in place of those of its configuration.

    Raises:
        LogError: the run or the log cannot be used, or holds no row to evaluate.
        UsageError: an unknown slice.
    """
    parts = [evaluate(source, logs, slices) for source in run_sources(run)]
    return parts[0] if len(parts) == 1 else single_task.evaluation(parts)


def run_sources(run: RunFolder) -> list[Source]:
    """The run's model, or of the single-task baseline the model of each task.

    Raises:
        LogError: a file of the run is damaged.
    """
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        return [source for task in config.task_names for source in run_sources(RunFolder.open(run.of_task(task)))]
    return [run_source(run, config, *load_model(run, config), run.load_selection())]


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
        done = model.trace(inputs)
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
