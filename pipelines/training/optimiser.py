"""Adam with a step size for each part of the model, and the pruning of its state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipelines.config import TrainingConfig
from ranking.gates import Gate
from ranking.model import Mixture


def make_optimiser(model: Mixture, config: TrainingConfig) -> torch.optim.AdamW:
    """Parameter groups: embeddings; trunk (norm, experts, towers), the only one that decays; gates, last.

    A per-example gate is a layer like others, and learns at the trunk's rate.
    """
    rate = config.learning_rate
    trunk = [model.norm, model.experts, model.towers, model.output]
    groups = [
        {"params": list(model.embeddings.parameters()), "lr": rate.embeddings, "weight_decay": 0.0},
        {
            "params": [p for part in trunk for p in part.parameters()],
            "lr": rate.trunk,
            "weight_decay": config.weight_decay,
        },
        {
            "params": list(model.gate.parameters()),
            "lr": rate.trunk if model.gate.per_example else rate.gates,
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]])


def replace_gate(model: Mixture, optimiser: torch.optim.Optimizer, gate: Gate) -> None:
    """Puts another gate in the place of the model's, whose parameters then start without state."""
    forget_gate(model, optimiser)
    gate.train(model.training)
    optimiser.param_groups[-1]["params"] = list(gate.parameters())
    model.gate = gate


def forget_gate(model: Mixture, optimiser: torch.optim.Optimizer) -> None:
    """Drops the optimiser's state of the gate, whose parameters were changed by other hands."""
    for parameter in model.gate.parameters():
        optimiser.state.pop(parameter, None)


def keep_experts(model: Mixture, optimiser: torch.optim.Optimizer, experts: list[int]) -> None:
    """Drops all experts but these from the model and from the optimiser's state."""
    kept = model.positions(experts)
    before = list(model.experts.parameters())
    model.keep_experts(experts)
    replacement: dict[nn.Parameter, nn.Parameter] = dict(zip(before, model.experts.parameters(), strict=True))
    for group in optimiser.param_groups:
        group["params"] = [replacement.get(parameter, parameter) for parameter in group["params"]]
    for old, new in replacement.items():
        state = optimiser.state.pop(old, {})
        optimiser.state[new] = {
            key: value[kept] if isinstance(value, Tensor) and value.shape == old.shape else value
            for key, value in state.items()
        }
