"""AdamW with a step size for each part of the model but the embedding tables, see ``tables``."""

from __future__ import annotations

import torch
from torch import nn

from pipelines.config import TrainingConfig
from ranking.model import Mixture


def make_optimiser(model: Mixture, config: TrainingConfig, weighting: nn.Module | None = None) -> torch.optim.AdamW:
    """Parameter groups: trunk (all but these), the only one that decays; weighting of the losses; gates, last.

    A per-example gate is a layer like others, and learns at the trunk's rate.
    """
    rate = config.learning_rate
    trunk: list[nn.Module] = [model.norm, model.experts, model.towers, model.output]
    if model.side is not None:
        trunk.append(model.side)
    groups = [
        {
            "params": [p for part in trunk for p in part.parameters()],
            "lr": rate.trunk,
            "weight_decay": config.weight_decay,
        },
        {
            "params": [] if weighting is None else list(weighting.parameters()),
            "lr": rate.trunk,
            "weight_decay": 0.0,
        },
        {
            "params": list(model.gate.parameters()),
            "lr": rate.trunk if model.gate.per_example else rate.gates,
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)
