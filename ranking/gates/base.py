"""What every gate is: a module that gives each task a distribution over the experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from ranking.selection import Selection


class Gate(nn.Module, ABC):
    """Task → weights over the experts.

    Attributes:
        num_tasks: rows of the gate's output.
        num_experts: columns of the gate's output.
    """

    num_tasks: int
    num_experts: int

    @abstractmethod
    def forward(self) -> Tensor:
        """Weights [tasks, experts] float32, each row ≥ 0 and summing to 1."""

    @abstractmethod
    def converged(self) -> Tensor:
        """Whether each task's choice of experts is final [tasks], bool."""

    @abstractmethod
    def selection(self, tasks: Sequence[str] | None = None) -> Selection:
        """The choice as plain data; tasks are called "0", "1", … unless named.

        Raises:
            NotConvergedError: some task's choice is not final.
        """
