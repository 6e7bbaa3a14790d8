"""Weights that do not fit are refused by name, whatever would have read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import validate_weight_shapes

Weights = dict[str, Any]


def wider(weights: Weights, layer: str) -> None:
    """One output more."""
    for name in (f"{layer}.weight", f"{layer}.bias"):
        weights[name] = np.concatenate([weights[name], weights[name][..., :1]], -1)


def test_those_of_a_ranker_fit(hand_ranker: FrozenRanker) -> None:
    validate_weight_shapes(hand_ranker.weights, hand_ranker.encoder, hand_ranker.selection)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda weights: weights.pop("embedding.genres"), "does not contain 'embedding.genres'"),
        (lambda weights: weights.pop("expert.1.0.weight"), "does not contain 'expert.1.0.weight'"),
        (lambda weights: weights.pop("expert.1.0.bias"), "does not contain 'expert.1.0.bias'"),
        (lambda weights: weights.pop("tower.like.0.weight"), "does not contain 'tower.like.0.weight'"),
        (lambda weights: weights.update({"tower.like.0.bias": np.zeros(3)}), "'tower.like.0.bias' has shape [3] instead of ["),
        (lambda weights: weights.update({"expert.1.0.weight": np.zeros(8)}), "'expert.1.0.weight' has shape [8] instead of ["),
        (lambda weights: weights.update({"embedding.user_id": np.zeros((2, 4))}), "'embedding.user_id' has shape [2, 4] instead of"),
        (lambda weights: wider(weights, "tower.like.1"), "'tower.like' has 2 outputs instead of 1"),
        (lambda weights: wider(weights, "expert.1.1"), "the experts have different widths"),
        (lambda weights: wider(weights, "expert.1.0"), "'expert.1.1.weight' has shape "),
    ],
)
def test_what_does_not_fit_is_named(hand_ranker: FrozenRanker, change: Callable[[Weights], object], said: str) -> None:
    weights = dict(hand_ranker.weights)
    change(weights)
    with pytest.raises(ValueError, match=re.escape(said)):
        validate_weight_shapes(weights, hand_ranker.encoder, hand_ranker.selection)
