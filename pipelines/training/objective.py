"""What training minimises, as one module: model, losses, penalties; so that many ranks can wrap a single pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipelines.config.config import Precision
from pipelines.training.distributed import DistContext
from pipelines.training.regularization import Regularization
from pipelines.training.torch_batch import DeviceBatch
from ranking.model.losses import FixedWeighting, task_losses
from ranking.model.mmoe import MMoE
from ranking.schema import Task


class Terms(NamedTuple):
    """One pass over a batch.

    Attributes:
        total: what is minimised: weighted losses and penalties.
        losses: data loss of each task [tasks], without weights and penalties.
        outputs: of the model [batch, tasks].
        weights: of the gate [..., tasks, experts].
    """

    total: Tensor
    losses: Tensor
    outputs: Tensor
    weights: Tensor


class Objective(nn.Module):
    """Losses and penalties of a model.

    Args:
        model: the dense model.
        tasks: kinds of the losses.
        weighting: of the losses.
        penalty: what the gate's settings add.
        precision: of the model's matrix products; gates and losses stay in float32.
    """

    def __init__(
        self,
        model: MMoE,
        tasks: Sequence[Task],
        weighting: FixedWeighting,
        penalty: Regularization,
        precision: Precision,
    ) -> None:
        super().__init__()
        self.model = model
        self.weighting = weighting
        self._tasks = tasks
        self._penalty = penalty
        self._half = precision == "bfloat16"

    def forward(self, step: int, batch: DeviceBatch) -> Terms:
        """The terms of this step, on this rank's part of the batch."""
        with torch.autocast(batch.labels.device.type, torch.bfloat16, enabled=self._half):
            done = self.model.forward_with_routing(batch.inputs, batch.side)
        outputs = done.outputs.float()
        losses = task_losses(outputs, batch.labels, self._tasks, batch.weights)
        total = self.weighting(losses) + self._penalty(step, self.model.gate, done)
        return Terms(total, losses.detach(), outputs.detach(), done.routing.weights.detach())


def data_parallel(objective: Objective, world: DistContext) -> nn.Module:
    """The objective whose gradients are averaged over the ranks; the tables, which are sharded, are left out.

    To be made anew whenever parameters are replaced or begin to learn.
    """
    if world.size == 1:
        return objective
    sharded = [name for name, _ in objective.named_parameters() if name.startswith("model.embeddings.")]
    sharded += [name for name, _ in objective.named_buffers() if name.startswith("model.embeddings.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective, sharded)
    return DistributedDataParallel(objective)
