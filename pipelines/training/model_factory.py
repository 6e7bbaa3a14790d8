"""Makes the dense model: untrained for an encoder, or with the best weights of a run. Needs TorchRec."""

from __future__ import annotations

import math

from safetensors import SafetensorError
from safetensors.torch import load_file

from pipelines.config.config import Config
from pipelines.runs.run import RunFolder
from ranking.encoding.encoder import Encoder
from ranking.errors import LogError
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.model.position_tower import PositionTower


def build_model(config: Config, encoder: Encoder, side_encoder: Encoder | None = None) -> MMoE:
    """An untrained model for what the encoder gives, with a side tower if there is an encoder for one."""
    tasks, tower, side = encoder.schema.tasks, config.model.side_tower, None
    if tower is not None and side_encoder is not None:
        side = PositionTower(tower, len(tasks), _embeddings(side_encoder), side_encoder.dense_size)
    correction = [math.log(task.keep_negatives) for task in tasks]
    gamma = config.training.convergence.gamma
    return MMoE(config.model, len(tasks), _embeddings(encoder), encoder.dense_size, gamma, side, correction)


def _embeddings(encoder: Encoder) -> Embeddings:
    return Embeddings(encoder.schema, {name: space.size for name, space in encoder.id_mappings.items()})


def read_side_encoder(run: RunFolder, config: Config) -> Encoder | None:
    """The encoder of the side tower that a run was trained with; None without one."""
    schema = config.position_schema
    return None if schema is None else Encoder.read(run.side_encoder, schema)


def load_model(run: RunFolder, config: Config) -> tuple[MMoE, Encoder]:
    """A run's best weights, ready to score, and the encoder that they were trained with.

    Raises:
        LogError: a file of the run is damaged.
    """
    try:
        encoder = Encoder.read(run.encoder, config.serving_schema)
        weights = load_file(run.best)
        model = build_model(config, encoder, read_side_encoder(run, config))
        model.gate = model.gate.serving_gate()  # only weights with a final choice are kept
        model.keep_experts(weights["active"].tolist())
        model.load_state_dict(weights)
    except (OSError, KeyError, RuntimeError, ValueError, SafetensorError) as error:
        raise LogError(f"{run.path}: the run is damaged, or of another version ({error}); train again") from error
    return model.eval(), encoder
