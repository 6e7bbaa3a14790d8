"""Untrained models whose embedding tables are plain PyTorch modules."""

from __future__ import annotations

from pipelines.config.config import Config
from pipelines.training.model_factory import build_model
from ranking.encoding.encoder import Encoder
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE


def build_plain_model(config: Config, encoder: Encoder) -> MMoE:
    """Build an untrained model for an encoder, with random weights in all tables."""
    model = build_model(config, encoder)
    model.embeddings = Embeddings(encoder.schema, {name: ids.size for name, ids in encoder.id_mappings.items()})
    return model
