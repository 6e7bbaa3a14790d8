"""A frozen model as data, and the validation of its weights; ``graph.FrozenGraph`` documents their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ranking.encoding.encoder import Encoder
from ranking.frozen.embedding_rows import PREFIX, ROW_TYPES, SCALE
from ranking.selection import Selection
from ranking.settings.gate import GateConfig

Weights = Mapping[str, npt.NDArray[Any]]
ArrayT = TypeVar("ArrayT")

FACTORS = "factors."
"""Name prefix of the factors of a scaled sum."""


@dataclass(frozen=True)
class FrozenModel:
    """Result of the training of one model: its selected experts with their weights.

    Attributes:
        selection: the selected experts.
        weights: arrays by the weight names of ``FrozenGraph``, with rows of embeddings as in ``embedding_rows``.
        gate: settings of a per-example gate; None if the gate is static.
    """

    selection: Selection
    weights: Weights = field(repr=False)
    gate: GateConfig | None = None


def prefixes(models: int) -> list[str]:
    """Return the start of the names of each model's arrays where several models are kept together."""
    return [""] if models == 1 else [f"{number}/" for number in range(models)]


def layers_of(weights: Mapping[str, ArrayT], name: str) -> list[tuple[ArrayT, ArrayT]]:
    """Return weight [inputs, outputs] and bias [outputs] of each layer of an expert or tower, in order.

    Args:
        weights: arrays or tensors by name.
        name: ``expert.E`` or ``tower.TASK``.
    """
    layers: list[tuple[ArrayT, ArrayT]] = []
    while (layer := f"{name}.{len(layers)}") + ".weight" in weights:
        layers.append((weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
    return layers


def factors_of(weights: Mapping[str, ArrayT], selection: Selection, task: str) -> Mapping[int, float | ArrayT]:
    """Return the factor of each selected expert's output in what a task's tower reads: a number, or a vector [width].

    Args:
        weights: arrays or tensors by name.
        selection: the selected experts.
        task: name of the task.
    """
    selected = selection.tasks[task]
    if selection.reading == "scaled":
        return {expert: weights[f"{FACTORS}{task}.{expert}"] for expert in selected}
    return selected if selection.reading == "sum" else dict.fromkeys(selected, 1.0)


def validate_weight_shapes(weights: Weights, encoder: Encoder, selection: Selection) -> None:
    """Check that all weights exist and that their shapes match the encoder, the selection and each other.

    Args:
        weights: arrays by name.
        encoder: encoder of the graph's inputs.
        selection: the selected experts of each task.

    Raises:
        ValueError: a weight is missing or has a different shape; the message names it.
    """
    schema = encoder.schema
    for name, feature in schema.tables.items():
        table, rows = f"{PREFIX}{name}", encoder.id_mappings[name].size
        _check_shape(weights, table, (rows, feature.dim))
        if weights[table].dtype == np.int8:
            _check_shape(weights, f"{table}{SCALE}", (rows,))
        elif weights[table].dtype not in ROW_TYPES:
            raise ValueError(f"'{table}' is {weights[table].dtype} instead of {', '.join(ROW_TYPES)}")
    input_width = sum(feature.dim for feature in schema.sparse) + encoder.dense_size + len(encoder.bins)
    widths = {_check_layers(weights, f"expert.{expert}", input_width) for expert in selection.experts_used}
    if len(widths) != 1:
        raise ValueError(f"the experts have different widths: {sorted(widths)}")
    (width,) = widths
    for task in schema.task_names:
        for expert in selection.tasks[task] if selection.reading == "scaled" else ():
            _check_shape(weights, f"{FACTORS}{task}.{expert}", (width,))
        inputs = width * (len(selection.tasks[task]) if selection.reading == "side_by_side" else 1)
        if (outputs := _check_layers(weights, f"tower.{task}", inputs)) != 1:
            raise ValueError(f"'tower.{task}' has {outputs} outputs instead of 1")


def _check_layers(weights: Weights, name: str, width: int) -> int:
    """Check the shapes of consecutive layers, the first of which reads ``width`` values; return the last width."""
    depth = 0
    while depth == 0 or f"{name}.{depth}.weight" in weights:
        layer = f"{name}.{depth}"
        outputs = _shape(weights, f"{layer}.weight")[-1:]
        _check_shape(weights, f"{layer}.weight", (width, *outputs))
        _check_shape(weights, f"{layer}.bias", outputs)
        (width,), depth = outputs, depth + 1
    return width


def _check_shape(weights: Weights, name: str, shape: tuple[int, ...]) -> None:
    if (actual := _shape(weights, name)) != shape:
        raise ValueError(f"'{name}' has shape {list(actual)} instead of {list(shape)}")


def _shape(weights: Weights, name: str) -> tuple[int, ...]:
    if name not in weights:
        raise ValueError(f"weights.safetensors does not contain '{name}'")
    return weights[name].shape
