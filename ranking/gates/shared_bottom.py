"""The shared bottom (Caruana 1997) as a gate: one network that every task uses."""

from __future__ import annotations

import torch
from torch import Tensor

from ranking.gates.base import Gate, Routing


class SharedBottom(Gate):
    """Weight 1 for the only expert, for every task; without parameters.

    Args:
        num_tasks: number of tasks T.
    """

    ones: Tensor

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks, num_experts=1, k=1)
        self.register_buffer("ones", torch.ones(num_tasks, 1))

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:  # noqa: ARG002
        """Return weights of 1 [tasks, 1]."""
        return Routing(self.ones)

    def converged(self) -> Tensor:
        """Return True for every task [tasks]."""
        return torch.ones(self.num_tasks, dtype=torch.bool)
