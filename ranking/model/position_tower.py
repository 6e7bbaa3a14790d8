"""The side tower: what the place of an impression adds to its labels, learnt beside the model and left out of it.

Zhao et al. 2019, "Recommending what video to watch next: a multitask ranking system", section 4.3.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ranking.encoding.torch_batch import TorchBatch
from ranking.schema import ListOf, Name, StrictModel, Widths

if TYPE_CHECKING:  # handed in, so that nothing here needs TorchRec
    from ranking.model.embeddings import Embeddings

MOMENTUM = 0.1
"""Weight of the newest batch in the running mean, as in batch norm."""


class PositionTowerConfig(StrictModel):
    """The side tower.

    Attributes:
        features: names of what it reads: the training-only features, and others that go with them (the device, say).
        layers: widths of its ReLU layers.
        dropout: share of the rows, drawn for each feature by itself, in which training hides the feature, so that the
            tower does not explain everything by it.
    """

    features: Annotated[ListOf[Name], Field(min_length=1)]
    layers: Widths = (16,)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1


class PositionTower(nn.Module):
    """A shallow network whose outputs are added to the model's in training.

    Its last layer starts at 0, so that training starts from the model's own outputs.

    Args:
        config: sizes.
        num_tasks: outputs.
        embeddings: of its own features, shared with nobody.
        dense_size: width of its ``TorchBatch.dense``.

    Attributes:
        mean: what it adds on average [tasks], a running mean over training batches; takes its place afterwards.
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
        """What is added to the outputs [batch, tasks]; in training the running mean takes it in."""
        x = self.norm(torch.cat([self.embeddings(inputs), inputs.dense], 1))
        if self.training:
            x = x * self._seen(len(x))  # normalised: what is hidden is at its mean
        added: Tensor = self.output(self.layers(x))
        if self.training:
            self.mean.lerp_(added.detach().float().mean(0), MOMENTUM)  # full precision: it moves in small steps
        return added

    def _seen(self, rows: int) -> Tensor:
        """1 where a feature is not hidden [rows, inputs]."""
        seen = torch.rand(rows, len(self.widths), device=self.mean.device) >= self.dropout
        return seen.repeat_interleave(self.widths, 1)
