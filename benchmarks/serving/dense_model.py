"""Variants of a bundle for comparison: with all experts, and without the user/item split.

A bundle contains the selected experts only. The dense variants add the others with random weights and a gate weight of
0: they cost as much as any expert and do not change the scores.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from benchmarks.serving.reference import set_selection
from ranking.frozen.ranker import FrozenRanker
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Schema
from ranking.settings.gate import DSelectKConfig
from ranking.settings.model import ModelConfig


@torch.no_grad()
def dense_model(ranker: FrozenRanker) -> MMoE:
    """Return a model, in eval mode, that freezes to the bundle.

    Raises:
        ValueError: the bundle has a per-example gate, or several models.
    """
    (graph,), schema, selection = ranker.graph.graphs, ranker.schema, ranker.selection
    if ranker.per_example:
        raise ValueError("a bundle with a per-example gate has no dense model")
    widths = [len(bias) for _, bias in next(iter(graph.experts.values()))]
    towers = [len(bias) for _, bias in graph.towers[schema.task_names[0]][:-1]]
    gate = DSelectKConfig(k=max(map(len, selection.tasks.values())))
    config = ModelConfig(
        experts=selection.num_experts, expert_layers=tuple(widths), tower_layers=tuple(towers), gate=gate
    )
    embeddings = Embeddings(schema, {name: mapping.size for name, mapping in ranker.encoder.id_mappings.items()})
    model = MMoE(config, len(schema.tasks), embeddings, DenseInputs(ranker.encoder.dense_size, ranker.encoder.bins))
    for table in schema.tables:
        embeddings.weight(table).copy_(graph.weights[f"embedding.{table}"])
    assert model.norm.running_var is not None
    nn.init.constant_(model.norm.running_var, 1.0 - model.norm.eps)  # The frozen experts include the batch norm.
    for expert, layers in graph.experts.items():
        for layer, (weight, bias) in zip(model.experts.stack, layers, strict=True):
            layer.weight[expert], layer.bias[expert] = weight, bias
    for t, task in enumerate(schema.task_names):
        for layer, (weight, bias) in zip([*model.towers.stack, model.output], graph.towers[task], strict=True):
            layer.weight[t], layer.bias[t] = weight, bias
    set_selection(model.gate, selection)
    return model.eval()


def dense_ranker(ranker: FrozenRanker) -> FrozenRanker:
    """Return the ranker with a graph in which every task uses all experts."""
    (model,) = ranker.models
    selection, weights = model.selection, dict(model.weights)
    template, random = selection.experts_used[0], np.random.default_rng(0)
    for expert in set(range(selection.num_experts)) - set(selection.experts_used):
        for name, value in model.weights.items():
            if name.startswith(f"expert.{template}."):
                values = random.normal(scale=value.std(), size=value.shape).astype(np.float32)
                weights[name.replace(f"expert.{template}.", f"expert.{expert}.", 1)] = values
    tasks = {
        task: {expert: chosen.get(expert, 0.0) for expert in range(selection.num_experts)}
        for task, chosen in selection.tasks.items()
    }
    dense = replace(selection, k=selection.num_experts, tasks=tasks)
    return replace(ranker, models=(replace(model, selection=dense, weights=weights),))


def without_split(ranker: FrozenRanker) -> FrozenRanker:
    """Return the ranker with all features owned by items, so that nothing is computed once per request."""
    features = tuple(
        feature.model_copy(update={"owner": "item"}) if hasattr(feature, "owner") else feature
        for feature in ranker.schema.features
    )
    # A validated schema would not accept user ids that are owned by items.
    schema: Schema = ranker.schema.model_copy(update={"features": features})
    encoder = type(ranker.encoder)(schema, ranker.encoder.id_mappings, ranker.encoder.scales)
    return replace(ranker, schema=schema, encoder=encoder)
