"""The softmax gate (Jordan & Jacobs 1994; multi-gate: Ma et al., KDD 2018), static and per example."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ranking.gates.base import Gate, Routing


class Softmax(Gate):
    """softmax(Ax + b): every expert has a positive weight. A = 0 for a static gate.

    Args:
        num_tasks: number of tasks T, each with its own gate.
        num_experts: number of experts n ≥ 1.
        input_size: width p of the examples, for a per-example gate.
        hidden: number of units of a ReLU layer before A, for a per-example gate: softmax(A relu(Hx + h) + b).

    Attributes:
        bias: b [tasks, experts].
        weight: A [tasks, experts, input_size or hidden] of a per-example gate.
        hidden_weight: H [tasks, hidden, input_size].
        hidden_bias: h [tasks, hidden].

    Raises:
        ValueError: a size is out of range, or a static gate has hidden units.
    """

    weight: nn.Parameter
    hidden_weight: nn.Parameter
    hidden_bias: nn.Parameter

    def __init__(
        self, num_tasks: int, num_experts: int, input_size: int | None = None, hidden: int | None = None
    ) -> None:
        super().__init__(num_tasks, num_experts, num_experts, input_size)
        self.bias = nn.Parameter(torch.zeros(num_tasks, num_experts))
        self.hidden = hidden
        if input_size is None:
            if hidden is not None:
                raise ValueError(
                    f"hidden = {hidden}: a static gate does not read examples and cannot have a hidden layer"
                )
            return
        if hidden is not None:
            if hidden < 1:
                raise ValueError(f"hidden = {hidden}: must be at least 1, or None for no hidden layer")
            self.hidden_weight = _uniform(num_tasks, hidden, input_size)
            self.hidden_bias = nn.Parameter(torch.zeros(num_tasks, hidden))
        self.weight = _uniform(num_tasks, num_experts, input_size if hidden is None else hidden)

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:  # noqa: ARG002
        """Compute the weights, which are all positive."""
        with torch.autocast(self.bias.device.type, enabled=False):
            if not self.per_example:
                return Routing(torch.softmax(self.bias, -1))
            x = self._examples(x, self.weight)
            if self.hidden is None:
                logits = torch.einsum("bp,tnp->btn", x, self.weight)
            else:
                hidden = torch.relu(torch.einsum("bp,thp->bth", x, self.hidden_weight) + self.hidden_bias)
                logits = torch.einsum("bth,tnh->btn", hidden, self.weight)
            return Routing(torch.softmax(logits + self.bias, -1))

    def converged(self) -> Tensor:
        """Return True for every task [tasks], because every expert is always used."""
        return torch.ones(self.num_tasks, dtype=torch.bool)


def _uniform(tasks: int, outputs: int, inputs: int) -> nn.Parameter:
    spread = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(tasks, outputs, inputs).uniform_(-spread, spread))
