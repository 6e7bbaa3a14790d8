"""Build the dense model: untrained for an encoder, or with the best weights of a run. Requires TorchRec."""

from __future__ import annotations

import math

from pipelines.config.config import Config
from pipelines.inspection.label_bounds import with_label_bounds
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import damaged_run, load_best
from ranking.encoding.encoder import Encoder
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.model.position_tower import PositionTower


def build_model(config: Config, encoder: Encoder, position_encoder: Encoder | None = None) -> MMoE:
    """Build an untrained model for an encoder, with a position tower if there is an encoder for it.

    The embedding tables, except those of the tower, have no weights yet: ``EmbeddingTables`` or the weights of a run
    replace them.
    """
    tasks, tower_config, tower = encoder.schema.tasks, config.model.side_tower, None
    if tower_config is not None and position_encoder is not None:
        tower = PositionTower(tower_config, len(tasks), _embeddings(position_encoder), position_encoder.dense_size)
    correction = [math.log(task.keep_negatives) for task in tasks]
    gamma = config.training.convergence.gamma
    return MMoE(
        config.model,
        len(tasks),
        _embeddings(encoder, "meta"),
        DenseInputs(encoder.dense_size, encoder.bins),
        gamma,
        tower,
        correction,
    )


def _embeddings(encoder: Encoder, device: str | None = None) -> Embeddings:
    return Embeddings(encoder.schema, {name: space.size for name, space in encoder.id_mappings.items()}, device)


def read_position_encoder(run: RunFolder, config: Config) -> Encoder | None:
    """Read the encoder of a run's position tower; None if the model has none."""
    schema = config.position_schema
    return None if schema is None else Encoder.read(run.position_encoder, schema)


def load_model(run: RunFolder, config: Config) -> tuple[MMoE, Encoder]:
    """Load a run's best weights in eval mode, with the encoder of the run, whose tasks have the run's label bounds.

    The weights are mapped from the file: processes share them, and rows of tables are read when they are used.

    Raises:
        LogError: a file of the run is damaged.
    """
    try:
        schema = with_label_bounds(config.serving_schema, run.load_label_bounds())
        encoder = Encoder.read(run.encoder, schema)
        weights = load_best(run)
        model = build_model(config, encoder, read_position_encoder(run, config))
        model.gate = model.gate.serving_gate()  # best weights always have a final selection
        model.keep_experts(weights["active"].tolist())
        model.load_state_dict(weights, assign=True)
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise damaged_run(run, error) from None
    return model.eval(), encoder
