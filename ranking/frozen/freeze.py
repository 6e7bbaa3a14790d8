"""Freezing: convert a converged model into a frozen ranker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable
from ranking.frozen.calibration import Calibration
from ranking.frozen.embedding_rows import PREFIX
from ranking.frozen.graph import GATE
from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import FACTORS, FrozenModel
from ranking.model.mmoe import MMoE
from ranking.model.readings import SideBySide, WeightedSum
from ranking.schema import Owner
from ranking.selection import Selection
from ranking.settings.gate import GateConfig


@torch.no_grad()
def freeze(
    model: MMoE,
    encoder: Encoder,
    tables: Mapping[Owner, FeatureTable],
    objective: Mapping[str, float],
    details: Mapping[str, Any] | None = None,
    routed: tuple[GateConfig, Selection] | None = None,
    calibration: Calibration | None = None,
) -> FrozenRanker:
    """Build the frozen ranker of a converged model.

    It contains only the selected experts, with the batch norm folded into their first layer. The output biases include
    the model's output offset. The position tower is left out. The embeddings share the memory of the model's.

    Args:
        model: trained model, in any mode.
        encoder: encoder that the model was trained with.
        tables: features of users and items by id.
        objective: weight of each task in the score that sorts candidates.
        details: further entries of the bundle's manifest.
        routed: settings and mean selection of a per-example gate, which becomes part of the graph.
        calibration: calibration of the outputs, which becomes part of the graph.

    Raises:
        NotConvergedError: the gate's selection is not final, or the gate cannot be part of a graph.
        ValueError: the gate is per-example and ``routed`` is missing.
    """
    schema = encoder.schema
    gate, selection = routed or (None, model.selection(schema.task_names))
    model.gate.require_converged(schema.task_names)
    norm = model.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    shift = norm.bias.double() - norm.running_mean.double() * scale
    weights: dict[str, Tensor] = {}
    used = selection.experts_used
    for expert, position in zip(used, model.positions(used), strict=True):
        for depth, layer in enumerate(model.experts.stack):
            weight, bias = layer.weight[position].double(), layer.bias[position].double()
            if depth == 0:
                weight, bias = scale.unsqueeze(1) * weight, bias + shift @ weight
            weights |= _named(f"expert.{expert}.{depth}", weight, bias)
    factors = None if isinstance(model.reading, WeightedSum) else model.reading.factors(_gate_weights(model, selection))
    for t, (task, selected) in enumerate(selection.tasks.items()):
        layers = [(layer.weight[t], layer.bias[t].double()) for layer in model.towers.stack]
        layers.append((model.output.weight[t], model.output.bias[t].double() + model.offset[t].double()))
        if factors is not None:
            own = factors[model.positions(list(selected)), t]
            if isinstance(model.reading, SideBySide):
                layers.insert(0, (own.flatten(0, 1), model.reading.bias[t].double()))
            else:
                weights |= {f"{FACTORS}{task}.{e}": factor for e, factor in zip(selected, own, strict=True)}
        for depth, (weight, bias) in enumerate(layers):
            weights |= _named(f"tower.{task}.{depth}", weight, bias)
    weights = {name: weight.float() for name, weight in weights.items()}
    if gate is not None:  # Full precision, because rounding could change the selected experts.
        weights |= {"norm.scale": scale, "norm.shift": shift}
        weights |= {f"{GATE}{name}": value for name, value in model.gate.state_dict().items()}
    arrays = {name: weight.detach().cpu().numpy().copy() for name, weight in weights.items()}
    arrays |= {f"{PREFIX}{name}": model.embeddings.weight(name).detach().cpu().numpy() for name in schema.tables}
    frozen = FrozenModel(selection, arrays, gate)
    return FrozenRanker(schema, encoder, (frozen,), tables, objective, details or {}, calibration or Calibration())


def _gate_weights(model: MMoE, selection: Selection) -> Tensor:
    """Return the weights of a selection [tasks, remaining experts], float64."""
    weights = torch.zeros(len(selection.tasks), len(model.active), dtype=torch.float64)
    for row, selected in zip(weights, selection.tasks.values(), strict=True):
        row[model.positions(list(selected))] = torch.tensor(list(selected.values()), dtype=torch.float64)
    return weights.to(model.active.device)


def _named(prefix: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{prefix}.weight": weight, f"{prefix}.bias": bias}
