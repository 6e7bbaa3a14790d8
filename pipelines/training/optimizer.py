"""AdamW with a step size for each part of the model but the embedding tables, see ``tables``."""

from __future__ import annotations

import torch
from torch import nn

from pipelines.config.config import TrainingConfig
from ranking.model.mmoe import MMoE


def make_optimizer(model: MMoE, config: TrainingConfig, weighting: nn.Module | None = None) -> torch.optim.AdamW:
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


def rate_factor(step: int, steps: int, warmup: float, chosen_at: int) -> float:
    """Share of the full step size at a step (the first is 1): up over the warm-up, down once the experts are chosen.

    Args:
        step: of the whole training.
        steps: in all.
        warmup: share of the steps over which the size rises linearly.
        chosen_at: step from which it falls linearly to 0.
    """
    rising = step / max(warmup * steps, 1.0)
    falling = (steps - step + 1) / max(1, steps - chosen_at)
    return min(1.0, rising, falling)
