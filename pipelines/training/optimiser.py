"""Adam with a step size for each part of the model, and the pruning of its state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipelines.config import TrainingConfig
from ranking.model import Mixture


def make_optimiser(model: Mixture, config: TrainingConfig) -> torch.optim.AdamW:
    """Parameter groups: embeddings; trunk (norm, experts, towers), the only one that decays; gates."""
    rate = config.learning_rate
    trunk = [model.norm, model.experts, model.towers, model.output]
    groups = [
        {"params": list(model.embeddings.parameters()), "lr": rate.embeddings, "weight_decay": 0.0},
        {
            "params": [p for part in trunk for p in part.parameters()],
            "lr": rate.trunk,
            "weight_decay": config.weight_decay,
        },
        {"params": list(model.gate.parameters()), "lr": rate.gates, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]])


def keep_experts(model: Mixture, optimiser: torch.optim.Optimizer, experts: list[int]) -> None:
    """Drops all experts but these from the model and from the optimiser's state."""
    kept = model.positions(experts)
    before = list(model.experts.parameters())
    model.keep_experts(experts)
    replacement: dict[nn.Parameter, nn.Parameter] = dict(zip(before, model.experts.parameters(), strict=True))
    for group in optimiser.param_groups:
        group["params"] = [replacement.get(parameter, parameter) for parameter in group["params"]]
    for old, new in replacement.items():
        state = optimiser.state.pop(old)
        optimiser.state[new] = {
            key: value[kept] if isinstance(value, Tensor) and value.shape == old.shape else value
            for key, value in state.items()
        }
