"""The position tower: the effect of an impression's position on its labels, learned in training and not served.

Zhao et al. 2019, "Recommending what video to watch next: a multitask ranking system", section 4.3.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ranking.encoding.torch_batch import TorchBatch
from ranking.settings.model import PositionTowerConfig

if TYPE_CHECKING:  # Passed in, so that this module does not need TorchRec.
    from ranking.model.embeddings import Embeddings

MOMENTUM = 0.1
"""Weight of the newest batch in the running mean, as in batch norm."""


class PositionTower(nn.Module):
    """A shallow network whose outputs are added to the model's in training.

    Its last layer starts at 0, so that training starts from the model's own outputs.

    Args:
        config: sizes.
        num_tasks: number of outputs.
        embeddings: embeddings of the tower's own features, not shared with the model.
        dense_size: width of its ``TorchBatch.dense``.

    Attributes:
        mean: running mean of its outputs over training batches [tasks], which replaces the tower in eval mode.
    """

    mean: Tensor
    widths: Tensor

    def __init__(self, config: PositionTowerConfig, num_tasks: int, embeddings: Embeddings, dense_size: int) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.norm = nn.BatchNorm1d(embeddings.width + dense_size)
        widths = [embeddings.width + dense_size, *config.layers]
        self.layers = nn.Sequential(
            *(part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU()))
        )
        self.output = nn.Linear(widths[-1], num_tasks, bias=False)
        nn.init.zeros_(self.output.weight)
        self.dropout = config.dropout
        self.register_buffer("widths", torch.tensor([*embeddings.widths, *[1] * dense_size]), persistent=False)
        self.register_buffer("mean", torch.zeros(num_tasks))

    def forward(self, inputs: TorchBatch) -> Tensor:
        """Return the values added to the outputs [batch, tasks]; updates the running mean in training."""
        x = self.norm(torch.cat([self.embeddings(inputs), inputs.dense], 1))
        if self.training:
            x = x * self._visible_mask(len(x))  # Inputs are normalized, so a hidden value is at its mean.
        added: Tensor = self.output(self.layers(x))
        if self.training:
            self.mean.lerp_(added.detach().float().mean(0), MOMENTUM)  # In full precision, because the steps are small.
        return added

    def _visible_mask(self, rows: int) -> Tensor:
        """Draw a mask [rows, inputs] that is true where a feature is not hidden."""
        visible = torch.rand(rows, len(self.widths), device=self.mean.device) >= self.dropout
        return visible.repeat_interleave(self.widths, 1)
