"""The weights of a frozen graph by name, see ``graph.FrozenGraph``: do they fit the features and each other?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from ranking.encoding.encoder import Encoder
from ranking.selection import Selection

Weights = Mapping[str, npt.NDArray[Any]]


def validate_weight_shapes(weights: Weights, encoder: Encoder, selection: Selection) -> None:
    """Embedding tables as large as the id spaces, layers that take what comes before them, and an output a task.

    Args:
        weights: by name.
        encoder: of the inputs.
        selection: which experts and tasks there are.

    Raises:
        ValueError: names what is missing or has another shape.
    """
    schema = encoder.schema
    for name, feature in schema.tables.items():
        _require_shape(weights, f"embedding.{name}", (encoder.id_spaces[name].size, feature.dim))
    joined = sum(feature.dim for feature in (*schema.categoricals, *schema.bags)) + encoder.dense_size
    widths = {_require_layers(weights, f"expert.{expert}", joined) for expert in selection.experts_used}
    if len(widths) != 1:
        raise ValueError(f"experts are {sorted(widths)} wide, not all alike")
    (width,) = widths
    for task in schema.task_names:
        if (last := _require_layers(weights, f"tower.{task}", width)) != 1:
            raise ValueError(f"'tower.{task}' ends in {last} outputs, not in one")


def _require_layers(weights: Weights, name: str, width: int) -> int:
    """How wide the last of these layers is, of which the first reads so many numbers."""
    depth = 0
    while depth == 0 or f"{name}.{depth}.weight" in weights:
        layer = f"{name}.{depth}"
        outputs = _shape(weights, f"{layer}.weight")[-1:]
        _require_shape(weights, f"{layer}.weight", (width, *outputs))
        _require_shape(weights, f"{layer}.bias", outputs)
        (width,), depth = outputs, depth + 1
    return width


def _require_shape(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    if (found := _shape(weights, name)) != shape:
        raise ValueError(f"'{name}' is {list(found)}, not {list(shape)}")


def _shape(weights: Weights, name: str) -> tuple[int, ...]:
    if name not in weights:
        raise ValueError(f"weights.safetensors holds no '{name}'")
    return weights[name].shape
