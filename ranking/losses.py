"""Losses over all tasks at once; a masked label (NaN) weighs nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ranking.schema import Task


def task_losses(outputs: Tensor, labels: Tensor, tasks: Sequence[Task]) -> Tensor:
    """Mean loss of each task [tasks] over its unmasked rows: cross-entropy (binary) or squared error (regression).

    Args:
        outputs: logits or numbers [batch, tasks].
        labels: [batch, tasks], NaN where masked.
        tasks: kinds, in the order of the columns. A task with no unmasked row has loss 0.
    """
    known = ~labels.isnan()
    target = torch.where(known, labels, 0.0)
    binary = _is_binary(tasks, outputs)
    cross_entropy = F.binary_cross_entropy_with_logits(outputs, torch.where(binary, target, 0.0), reduction="none")
    loss = torch.where(binary, cross_entropy, (outputs - target).square())
    return torch.where(known, loss, 0.0).sum(0) / known.sum(0).clamp(min=1)


def scores(outputs: Tensor, tasks: Sequence[Task]) -> Tensor:
    """What users see [batch, tasks]: probabilities of binary tasks, (transformed) numbers of regressions."""
    return torch.where(_is_binary(tasks, outputs), outputs.sigmoid(), outputs)


def _is_binary(tasks: Sequence[Task], like: Tensor) -> Tensor:
    return torch.tensor([task.kind == "binary" for task in tasks], device=like.device)
