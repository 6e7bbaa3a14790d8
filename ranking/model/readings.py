"""Input of a task's tower, computed from the experts that its gate weights, for each value of ``Reading``."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.model.dropout import dropout


class WeightedSum(nn.Module):
    """``sum``: m_t = Σᵢ w_ti Eᵢ, as published (DSelect-k, section 2)."""

    def forward(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return what each task's tower reads [tasks, batch, width].

        Args:
            hidden: outputs of the experts [experts, batch, width].
            weights: gate weights [tasks, experts], or [batch, tasks, experts].
        """
        return torch.einsum("bte,ebw->tbw" if weights.dim() == 3 else "te,ebw->tbw", weights, hidden)

    def keep(self, positions: list[int]) -> None:
        """Keep only the experts at these positions."""


class ScaledSum(nn.Module):
    """``scaled``: m_t = Σᵢ k w_ti (d_ti ⊙ Eᵢ), with a learned vector d_ti per task and expert.

    Tasks that share an expert weight its units differently, at the cost of the plain sum.

    Args:
        tasks: number of tasks.
        experts: number of experts.
        width: width of an expert's output.
        k: number of experts that a task selects; k w_ti is about 1 for each of them.

    Attributes:
        scale: d [experts, tasks, width], initially 1.
    """

    def __init__(self, tasks: int, experts: int, width: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.scale = nn.Parameter(torch.ones(experts, tasks, width))

    def forward(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return what each task's tower reads [tasks, batch, width]; see ``WeightedSum``."""
        return torch.einsum("etw,ebw->tbw", self.factors(weights), hidden)

    def factors(self, weights: Tensor) -> Tensor:
        """Return k w_ti d_ti [experts, tasks, width] for gate weights [tasks, experts]."""
        return (self.k * weights.T).unsqueeze(-1) * self.scale

    def keep(self, positions: list[int]) -> None:
        """Keep only the experts at these positions; the parameter becomes a new object."""
        self.scale = nn.Parameter(self.scale.detach()[positions])


class SideBySide(nn.Module):
    """``side_by_side``: z_t = ReLU(Σᵢ k w_ti Eᵢ W_ti + b_t), the first layer of a tower, with a block per expert.

    A selected expert is read in full instead of added to the others. Once the selection is final, k w_ti is part of
    W_ti, and only the blocks of the selected experts remain: a layer that reads their outputs side by side.

    Args:
        tasks: number of tasks.
        experts: number of experts.
        width: width of an expert's output.
        units: width of the tower's first layer.
        k: see ``ScaledSum``.
        dropout: probability of dropping a unit in training.

    Attributes:
        blocks: W [experts, tasks, width, units].
        bias: b [tasks, units].
    """

    def __init__(self, tasks: int, experts: int, width: int, units: int, k: int, dropout: float) -> None:
        super().__init__()
        self.k, self.dropout = k, dropout
        bound = 1 / math.sqrt(width)
        self.blocks = nn.Parameter(torch.empty(experts, tasks, width, units).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(tasks, units).uniform_(-bound, bound))

    def forward(self, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return the outputs of the first layers of the towers [tasks, batch, units]; see ``WeightedSum``."""
        experts, tasks, width, units = self.blocks.shape
        wide = self.factors(weights).transpose(1, 2).reshape(experts * width, tasks * units)
        x = hidden.transpose(0, 1).reshape(-1, experts * width)
        outputs = torch.addmm(self.bias.flatten(), x, wide).view(-1, tasks, units).transpose(0, 1)
        return dropout(F.relu(outputs), self.dropout, self.training)

    def factors(self, weights: Tensor) -> Tensor:
        """Return k w_ti W_ti [experts, tasks, width, units] for gate weights [tasks, experts]."""
        return (self.k * weights.T)[:, :, None, None] * self.blocks

    def keep(self, positions: list[int]) -> None:
        """Keep only the experts at these positions; the parameter becomes a new object."""
        self.blocks = nn.Parameter(self.blocks.detach()[positions])
