"""Runs as something to measure. Needs TorchRec, which bundles do without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pipelines.config.config import Config
from pipelines.data.reader import load_tables
from pipelines.evaluation.sources import Scorer
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.gates.config import SingleTaskConfig
from ranking.model.mmoe import MMoE


def run_scorers(run: RunFolder) -> Iterator[Scorer]:
    """The run's model, or of the single-task baseline the model of each task, loaded one after the other.

    Raises:
        LogError: a file of the run is damaged.
    """
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        for task in config.task_names:
            yield from run_scorers(RunFolder.open(run.of_task(task)))
    else:
        yield run_scorer(run, config, *load_model(run, config), run.load_selection())


def run_scorer(run: RunFolder, config: Config, model: MMoE, encoder: Encoder, trained: Mapping[str, Any]) -> Scorer:
    """A run whose best weights are loaded, in eval mode.

    Args:
        run: the run.
        config: that it was trained with.
        model: with its best weights.
        encoder: that it was trained with.
        trained: what ``selection.json`` says or is to say.
    """

    def outputs(inputs: EncodedBatch) -> tuple[Tensor, Tensor]:
        done = model.forward_with_routing(TorchBatch.from_numpy(inputs))
        return done.outputs, done.routing.weights

    return Scorer(
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
