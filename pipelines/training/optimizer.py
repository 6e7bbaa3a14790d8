"""AdamW for all parts of the model except the embedding tables, which ``embedding_tables`` optimizes."""

from __future__ import annotations

import torch
from torch import nn

from pipelines.config.config import TrainingConfig
from ranking.model.mmoe import MMoE


def make_optimizer(model: MMoE, config: TrainingConfig, weighting: nn.Module | None = None) -> torch.optim.AdamW:
    """Create the optimizer with its parameter groups: trunk, loss weighting, gates (last).

    Only the trunk, which is everything outside the other two groups, has weight decay. A per-example gate is a layer
    like any other and uses the trunk's learning rate.
    """
    rates = config.learning_rate
    trunk: list[nn.Module] = [model.norm, model.experts, model.reading, model.towers, model.output]
    if model.side is not None:
        trunk.append(model.side)
    groups = [
        {
            "params": [parameter for module in trunk for parameter in module.parameters()],
            "lr": rates.trunk,
            "weight_decay": config.weight_decay,
        },
        {
            "params": [] if weighting is None else list(weighting.parameters()),
            "lr": rates.trunk,
            "weight_decay": 0.0,
        },
        {
            "params": list(model.gate.parameters()),
            "lr": rates.trunk if model.gate.per_example else rates.gates,
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)


def learning_rate_factor(step: int, steps: int, warmup: float, decay_from: int) -> float:
    """Return the factor on the learning rate at a step: linear warm-up, constant, then linear decay to 0.

    Args:
        step: step of the whole training, from 1.
        steps: number of steps.
        warmup: fraction of the steps that the warm-up takes.
        decay_from: step after which the decay starts.
    """
    rising = step / max(warmup * steps, 1.0)
    falling = (steps - step + 1) / max(1, steps - decay_from)
    return min(1.0, rising, falling)
