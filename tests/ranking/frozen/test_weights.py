"""Validation of the weights of a frozen graph: errors name the weight."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import validate_weight_shapes
from tests.support.one_model import weights_of

Weights = dict[str, Any]


def add_output(weights: Weights, layer: str) -> None:
    """Add one output to a layer."""
    for name in (f"{layer}.weight", f"{layer}.bias"):
        weights[name] = np.concatenate([weights[name], weights[name][..., :1]], -1)


def test_validate_weight_shapes_of_frozen_ranker_passes(hand_ranker: FrozenRanker) -> None:
    validate_weight_shapes(weights_of(hand_ranker), hand_ranker.encoder, hand_ranker.selection)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("embedding.genres"), "does not contain 'embedding.genres'"),
        (lambda weights: weights.pop("expert.1.0.weight"), "does not contain 'expert.1.0.weight'"),
        (lambda weights: weights.pop("expert.1.0.bias"), "does not contain 'expert.1.0.bias'"),
        (lambda weights: weights.pop("tower.like.0.weight"), "does not contain 'tower.like.0.weight'"),
        (
            lambda weights: weights.update({"tower.like.0.bias": np.zeros(3)}),
            "'tower.like.0.bias' has shape [3] instead of [",
        ),
        (
            lambda weights: weights.update({"expert.1.0.weight": np.zeros(8)}),
            "'expert.1.0.weight' has shape [8] instead of [",
        ),
        (
            lambda weights: weights.update({"embedding.user_id": np.zeros((2, 4))}),
            "'embedding.user_id' has shape [2, 4] instead of",
        ),
        (
            lambda weights: weights.update({"embedding.tab": weights["embedding.tab"].astype(np.int8)}),
            "does not contain 'embedding.tab.scale'",
        ),
        (
            lambda weights: weights.update({"embedding.tab": weights["embedding.tab"].astype(np.float64)}),
            "'embedding.tab' is float64 instead of float32, float16, int8",
        ),
        (lambda weights: add_output(weights, "tower.like.1"), "'tower.like' has 2 outputs instead of 1"),
        (lambda weights: add_output(weights, "expert.1.1"), "the experts have different widths"),
        (lambda weights: add_output(weights, "expert.1.0"), "'expert.1.1.weight' has shape "),
    ],
)
def test_validate_weight_shapes_of_missing_or_wrong_weight_raises_with_its_name(
    hand_ranker: FrozenRanker, change: Callable[[Weights], object], message: str
) -> None:
    weights = dict(weights_of(hand_ranker))
    change(weights)
    with pytest.raises(ValueError, match=re.escape(message)):
        validate_weight_shapes(weights, hand_ranker.encoder, hand_ranker.selection)
