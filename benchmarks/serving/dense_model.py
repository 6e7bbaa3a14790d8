"""What a bundle would cost without its choice: every expert evaluated, mixed with the weights of the gate.

A bundle holds the chosen experts only. The others take part here with random weights, which cost what any would, and
are mixed with a weight of 0, so that scores stay those of the bundle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK, Gate
from ranking.gates.config import DSelectKConfig
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE, ModelConfig
from ranking.schema import Schema
from ranking.selection import Selection


@torch.no_grad()
def dense_model(ranker: FrozenRanker) -> MMoE:
    """The model that the bundle could have been frozen from, in eval mode.

    Raises:
        ValueError: its gate decides per example.
    """
    graph, schema, selection = ranker.graph, ranker.schema, ranker.selection
    if ranker.gate is not None:
        raise ValueError("a per-example gate has no dense model here")
    widths = [len(bias) for _, bias in next(iter(graph.experts.values()))]
    towers = [len(bias) for _, bias in graph.towers[schema.task_names[0]][:-1]]
    gate = DSelectKConfig(k=max(map(len, selection.tasks.values())))
    config = ModelConfig(
        experts=selection.num_experts, expert_layers=tuple(widths), tower_layers=tuple(towers), gate=gate
    )
    embeddings = Embeddings(schema, {name: space.size for name, space in ranker.encoder.id_spaces.items()})
    model = MMoE(config, len(schema.tasks), embeddings, ranker.encoder.dense_size)
    for table in schema.tables:
        embeddings.weight(table).copy_(graph.weights[f"embedding.{table}"])
    nn.init.constant_(model.norm.running_var, 1.0 - model.norm.eps)  # folded into the experts already
    for expert, layers in graph.experts.items():
        for layer, (weight, bias) in zip(model.experts.stack, layers, strict=True):
            layer.weight[expert], layer.bias[expert] = weight, bias
    for t, task in enumerate(schema.task_names):
        for layer, (weight, bias) in zip([*model.towers.stack, model.output], graph.towers[task], strict=True):
            layer.weight[t], layer.bias[t] = weight, bias
    choose(model.gate, selection)
    return model.eval()


@torch.no_grad()
def choose(gate: Gate, selection: Selection) -> None:
    """Brings a static DSelect-k gate to this choice, final and exact.

    Raises:
        ValueError: the gate is another.
    """
    if not isinstance(gate, DSelectK) or gate.per_example:
        raise ValueError("only a static DSelect-k gate can be brought to a choice here")
    for t, chosen in enumerate(selection.tasks.values()):
        experts = list(chosen)
        codes = torch.tensor([*experts, *experts[:1] * (gate.k - len(experts))])
        gate.z[t] = torch.where(gate.bits[codes], gate.gamma, -gate.gamma)
        gate.alpha[t] = torch.tensor([*chosen.values(), *[0.0] * (gate.k - len(experts))]).log()


def dense_ranker(ranker: FrozenRanker) -> FrozenRanker:
    """The ranker with a graph that evaluates and mixes all experts."""
    selection, weights = ranker.selection, dict(ranker.weights)
    layers, random = selection.experts_used[0], np.random.default_rng(0)
    for expert in set(range(selection.num_experts)) - set(selection.experts_used):
        of_one = {name: value for name, value in weights.items() if name.startswith(f"expert.{layers}.")}
        for name, value in of_one.items():
            drawn = random.normal(scale=value.std(), size=value.shape).astype(np.float32)
            weights[name.replace(f"expert.{layers}.", f"expert.{expert}.", 1)] = drawn
    everyone = {
        task: {expert: chosen.get(expert, 0.0) for expert in range(selection.num_experts)}
        for task, chosen in selection.tasks.items()
    }
    dense = replace(selection, k=selection.num_experts, tasks=everyone)
    return replace(ranker, selection=dense, weights=weights, body=None)


def unsplit(ranker: FrozenRanker) -> FrozenRanker:
    """The ranker with everything counted as the items': nothing is computed once a request."""
    features = tuple(
        feature.model_copy(update={"owner": "item"}) if hasattr(feature, "owner") else feature
        for feature in ranker.schema.features
    )
    schema: Schema = ranker.schema.model_copy(update={"features": features})  # unchecked: ids keep their owner else
    encoder = type(ranker.encoder)(schema, ranker.encoder.id_spaces, ranker.encoder.scales)
    whole = replace(ranker, schema=schema, encoder=encoder)
    return replace(whole, body=onnx_body(whole.graph, encoder))
