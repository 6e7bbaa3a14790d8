"""n small networks of the same shape with stacked weights, computed by batched matrix products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.model.dropout import dropout

ALIGNED = 16
"""Float32 values in 64 bytes. The input gradient is 1.5 times slower if the width is not a multiple of this."""


class StackedLinear(nn.Module):
    """n affine maps in one batched product, initialized like ``torch.nn.Linear``.

    Args:
        count: number of networks n.
        inputs: width of the input.
        outputs: width of the output.
    """

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, batch, inputs], or [batch, inputs] shared by all networks, to [n, batch, outputs]."""
        if x.dim() == 3 and self.weight.shape[2] == 1:  # A product with one column is several times slower.
            return (x * self.weight.squeeze(-1).unsqueeze(1)).sum(-1, keepdim=True) + self.bias.unsqueeze(1)
        if x.dim() == 3:
            return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight)
        # One wide product, whose backward pass computes a single gradient of x.
        count, inputs, outputs = self.weight.shape
        padding = -inputs % ALIGNED
        wide = F.pad(self.weight.permute(1, 0, 2).reshape(inputs, count * outputs), (0, 0, 0, padding))
        return torch.addmm(self.bias.flatten(), F.pad(x, (0, padding)), wide).view(-1, count, outputs).transpose(0, 1)


class StackedMLP(nn.Module):
    """n networks: ReLU layers, each followed by dropout.

    Args:
        count: number of networks n.
        inputs: width of the input.
        layers: widths of the layers; if empty, the output is the input.
        dropout: probability of dropping a unit in training.
    """

    def __init__(self, count: int, inputs: int, layers: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *layers]
        self.layers = nn.ModuleList(StackedLinear(count, a, b) for a, b in itertools.pairwise(widths))
        self.dropout = dropout

    @property
    def stack(self) -> list[StackedLinear]:
        """The affine maps, first layer first."""
        return [layer for layer in self.layers if isinstance(layer, StackedLinear)]

    def keep(self, positions: list[int]) -> None:
        """Keep only the networks at these positions; the parameters become new objects."""
        for layer in self.stack:
            layer.weight = nn.Parameter(layer.weight.detach()[positions])
            layer.bias = nn.Parameter(layer.bias.detach()[positions])

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, batch, inputs], or [batch, inputs] shared by all networks, to [n, batch, last width]."""
        for layer in self.stack:
            x = dropout(F.relu(layer(x)), self.dropout, self.training)
        return x
