"""Weights of rankers that have one model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ranking.frozen.ranker import FrozenRanker
    from ranking.frozen.weights import Weights

__all__ = ["weights_of", "with_weights"]


def weights_of(ranker: FrozenRanker) -> Weights:
    """Return the weights of the only model of a ranker."""
    (model,) = ranker.models
    return model.weights


def with_weights(ranker: FrozenRanker, weights: Weights) -> FrozenRanker:
    """Return the ranker with other weights."""
    (model,) = ranker.models
    return replace(ranker, models=(replace(model, weights=weights),))
