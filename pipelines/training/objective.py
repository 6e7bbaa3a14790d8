"""Training objective as one module: model, losses and penalties, so that DDP wraps a single forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipelines.config.config import Precision
from pipelines.training.distributed import DistContext
from pipelines.training.labeled_batch import DeviceBatch
from pipelines.training.regularization import Regularization
from ranking.model.losses import FixedWeighting, task_losses
from ranking.model.mmoe import MMoE
from ranking.model.ranking_loss import pairwise_losses
from ranking.schema import Task


class ObjectiveOutput(NamedTuple):
    """Result of one pass over a batch.

    Attributes:
        total: scalar to minimize: weighted losses plus penalties.
        losses: loss per task [tasks], without task weights, ranking loss and penalties.
        outputs: model outputs [batch, tasks].
        weights: gate weights [..., tasks, experts].
    """

    total: Tensor
    losses: Tensor
    outputs: Tensor
    weights: Tensor


class Objective(nn.Module):
    """Weighted losses and penalties of a model.

    Args:
        model: the dense model.
        tasks: the tasks, which determine the losses.
        weighting: weighting of the losses.
        penalty: penalties on the gate.
        ranking_weight: weight of the pairwise losses of batches with groups, in addition to the task weights.
        precision: precision of the model's matrix products; gates and losses stay in float32.
    """

    def __init__(
        self,
        model: MMoE,
        tasks: Sequence[Task],
        weighting: FixedWeighting,
        penalty: Regularization,
        ranking_weight: float,
        precision: Precision,
    ) -> None:
        super().__init__()
        self.model = model
        self.weighting = weighting
        self._tasks = tasks
        self._penalty = penalty
        self._ranking_weight = ranking_weight
        self._autocast = precision == "bfloat16"

    def forward(self, step: int, batch: DeviceBatch, targets: Tensor | None = None) -> ObjectiveOutput:
        """Compute the objective of a step on this rank's part of the batch.

        Args:
            step: number of the step.
            batch: the rows.
            targets: what each row's losses compare its outputs with [rows, tasks]; default: the labels. The ranking
                loss always orders the rows by their labels.
        """
        with torch.autocast(batch.labels.device.type, torch.bfloat16, enabled=self._autocast):
            forward = self.model.forward_with_routing(batch.inputs, batch.position_inputs)
        outputs = forward.outputs.float()
        labels = batch.labels if targets is None else targets
        losses = task_losses(outputs, labels, self._tasks, batch.weights)
        total = self.weighting(losses) + self._penalty(step, self.model.gate, forward)
        if batch.groups is not None:
            ranking = pairwise_losses(outputs, batch.labels, batch.groups, self._tasks, batch.weights)
            total = total + self._ranking_weight * (ranking @ self.weighting.weights)
        return ObjectiveOutput(total, losses.detach(), outputs.detach(), forward.routing.weights.detach())


def data_parallel(objective: Objective, context: DistContext) -> nn.Module:
    """Wrap the objective so that gradients are averaged over the ranks, except those of the sharded tables.

    Wrap again whenever parameters are replaced or unfrozen.
    """
    if context.world_size == 1:
        return objective
    sharded = [name for name, _ in objective.named_parameters() if name.startswith("model.embeddings.")]
    sharded += [name for name, _ in objective.named_buffers() if name.startswith("model.embeddings.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective, sharded)  # type: ignore[no-untyped-call]
    return DistributedDataParallel(objective)
