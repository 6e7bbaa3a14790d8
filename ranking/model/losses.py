"""Losses of all tasks and their weighted sum; a masked label (NaN) has weight 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.schema import Task


def task_losses(outputs: Tensor, labels: Tensor, tasks: Sequence[Task], weights: Tensor | None = None) -> Tensor:
    """Return each task's mean loss [tasks] over unmasked rows: cross-entropy (binary) or squared error (regression).

    Args:
        outputs: logits or values [batch, tasks].
        labels: labels [batch, tasks], NaN where masked.
        tasks: tasks in the order of the columns. A task without unmasked rows has loss 0.
        weights: sample weights [batch], default 1. A weight of 2 is equivalent to duplicating the row.
    """
    known = ~labels.isnan()
    target = torch.where(known, labels, 0.0)
    binary = _is_binary(tasks, outputs)
    cross_entropy = F.binary_cross_entropy_with_logits(outputs, torch.where(binary, target, 0.0), reduction="none")
    loss = torch.where(known, torch.where(binary, cross_entropy, (outputs - target).square()), 0.0)
    if weights is None:
        return loss.sum(0) / known.sum(0).clamp(min=1)
    total = label_weights(labels, weights)
    return weights.to(loss.dtype) @ loss / torch.where(total > 0, total, 1.0)


def label_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of the sample weights of each task's unmasked rows [tasks]."""
    return weights @ (~labels.isnan()).to(weights.dtype)


class FixedWeighting(nn.Module):
    """Weighted sum of the task losses, with the weights declared by the tasks."""

    weights: Tensor

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([task.weight for task in tasks]), persistent=False)

    def forward(self, losses: Tensor) -> Tensor:
        """Combine losses [tasks] into a scalar."""
        return losses @ self.weights


class UncertaintyWeighting(FixedWeighting):
    """Weight tasks by their label noise: exp(−s)·L + s/2 (regression: ½·exp(−s)·L + s/2), times the task weight.

    Kendall et al. 2018, "Multi-task learning using uncertainty to weigh losses", section 3.2; s = log σ² is learned.

    Args:
        tasks: tasks in the order of their losses.
    """

    scale: Tensor

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        self.log_variances = nn.Parameter(torch.zeros(len(tasks)))
        scale = torch.tensor([1.0 if task.kind == "binary" else 0.5 for task in tasks])
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, losses: Tensor) -> Tensor:
        """Combine losses [tasks] into a scalar, which can be negative."""
        weighted = self.scale * (-self.log_variances).exp() * losses + self.log_variances / 2
        return super().forward(weighted)


def _is_binary(tasks: Sequence[Task], like: Tensor) -> Tensor:
    return torch.tensor([task.kind == "binary" for task in tasks], device=like.device)
