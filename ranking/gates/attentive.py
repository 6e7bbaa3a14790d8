"""The attentive gate (Krishnamurthy, Watkins & Gärtner, "Improving Expert Specialization in Mixture of Experts")."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ranking.errors import NotConvergedError
from ranking.gates.base import Gate, Routing
from ranking.gates.softmax import Softmax

MOMENTUM = 0.1
"""Weight of the newest batch in the running mean of the experts' outputs, as in batch norm."""


class AttentiveGate(Gate):
    """softmax(QKᵀ/√h): attention to the experts, given their outputs (section 5, equations 4–6).

    Q = G W_q comes from the gate's hidden layer G = relu(Hx + b), K_i = E_i W_k from expert i's output E_i. The gate
    needs the outputs of all experts, so it cannot be served; ``serving_gate`` distills it (section 5.1).

    Args:
        num_tasks: number of tasks T, each with its own hidden layer and query.
        num_experts: number of experts n ≥ 1.
        input_size: width p of the examples.
        width: width h of the experts' outputs and of the hidden layer.

    Attributes:
        hidden_weight: H [tasks, width, input_size].
        hidden_bias: b [tasks, width].
        query: W_q [tasks, width, width].
        key: W_k [tasks, width, width].
        mean_outputs: running mean of each expert's output over training batches [experts, width].

    Raises:
        ValueError: a size is out of range.
    """

    mean_outputs: Tensor

    def __init__(self, num_tasks: int, num_experts: int, input_size: int, width: int) -> None:
        super().__init__(num_tasks, num_experts, num_experts, input_size)
        if width < 1:
            raise ValueError(f"width = {width}: must be at least 1")
        self.width = width
        self.needs_finalize = True
        spread, inner = 1 / math.sqrt(input_size), 1 / math.sqrt(width)
        self.hidden_weight = nn.Parameter(torch.empty(num_tasks, width, input_size).uniform_(-spread, spread))
        self.hidden_bias = nn.Parameter(torch.zeros(num_tasks, width))
        self.query = nn.Parameter(torch.empty(num_tasks, width, width).uniform_(-inner, inner))
        self.key = nn.Parameter(torch.empty(num_tasks, width, width).uniform_(-inner, inner))
        self.register_buffer("mean_outputs", torch.zeros(num_experts, width))

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:
        """Compute the weights [batch, tasks, experts].

        Raises:
            ValueError: the examples or the experts' outputs [experts, batch, width] are missing.
        """
        if outputs is None:
            raise ValueError("an attentive gate needs the experts' outputs: pass outputs [experts, batch, width]")
        with torch.autocast(self.key.device.type, enabled=False):
            x, outputs = self._examples(x, self.key), outputs.to(self.key.dtype)
            if self.training:
                with torch.no_grad():
                    self.mean_outputs.lerp_(outputs.mean(1), MOMENTUM)
            hidden = torch.relu(torch.einsum("bp,thp->bth", x, self.hidden_weight) + self.hidden_bias)
            attended = torch.einsum("bth,thw->btw", hidden, self._folded())
            return Routing(torch.softmax(torch.einsum("btw,nbw->btn", attended, outputs), -1))

    def _folded(self) -> Tensor:
        """Return W_q W_kᵀ/√h [tasks, width, width], which avoids a key per task, expert and example."""
        return self.query @ self.key.mT / math.sqrt(self.width)

    def converged(self) -> Tensor:
        """Return False for every task [tasks], because the gate always needs all experts."""
        return torch.zeros(self.num_tasks, dtype=torch.bool)

    def require_converged(self, names: Sequence[str]) -> None:  # noqa: ARG002
        """Reject freezing.

        Raises:
            NotConvergedError: always; the message says what to do.
        """
        raise NotConvergedError(
            "an attentive gate needs the outputs of all experts, so it cannot be frozen: "
            "train until it is distilled into a per-example softmax gate"
        )

    @torch.no_grad()
    def serving_gate(self) -> Softmax:
        """Create a per-example softmax gate with this gate's hidden layer, to be trained with fixed experts.

        Its last layer initially equals the attention to experts that return their mean output.
        """
        gate = Softmax(self.num_tasks, self.num_experts, self.input_size, hidden=self.width)
        gate.hidden_weight.copy_(self.hidden_weight)
        gate.hidden_bias.copy_(self.hidden_bias)
        gate.weight.copy_(torch.einsum("thw,nw->tnh", self._folded(), self.mean_outputs))
        return gate.to(self.key)
