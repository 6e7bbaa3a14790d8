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
"""Share of the newest batch in the running mean of the experts' outputs, as in a batch norm."""


class AttentiveGate(Gate):
    """softmax(QKᵀ/√h): which experts the gate attends to, given what they computed (section 5, equations 4–6).

    Q = G W_q comes from the gate's hidden layer G = relu(Hx + b), K_i = E_i W_k from expert i's output E_i. All experts
    must have run before the gate can choose, so it cannot serve as it is: ``ordinary`` distils it (section 5.1).

    Args:
        num_tasks: T, each with a hidden layer and a query of its own.
        num_experts: n ≥ 1.
        input_size: width p of the examples.
        width: h, of the experts' outputs and of the hidden layer.

    Attributes:
        hidden_weight: H [tasks, width, input_size].
        hidden_bias: b [tasks, width].
        query: W_q [tasks, width, width].
        key: W_k [tasks, width, width].
        mean_outputs: running mean of each expert's output over the batches of training [experts, width].

    Raises:
        ValueError: a size out of range.
    """

    mean_outputs: Tensor

    def __init__(self, num_tasks: int, num_experts: int, input_size: int, width: int) -> None:
        super().__init__(num_tasks, num_experts, num_experts, input_size)
        if width < 1:
            raise ValueError(f"width = {width}: must be at least 1")
        self.width = width
        self.concludes = True
        spread, inner = 1 / math.sqrt(input_size), 1 / math.sqrt(width)
        self.hidden_weight = nn.Parameter(torch.empty(num_tasks, width, input_size).uniform_(-spread, spread))
        self.hidden_bias = nn.Parameter(torch.zeros(num_tasks, width))
        self.query = nn.Parameter(torch.empty(num_tasks, width, width).uniform_(-inner, inner))
        self.key = nn.Parameter(torch.empty(num_tasks, width, width).uniform_(-inner, inner))
        self.register_buffer("mean_outputs", torch.zeros(num_experts, width))

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:
        """Weights [batch, tasks, experts].

        Raises:
            ValueError: examples or the experts' outputs [experts, batch, width] are missing.
        """
        if outputs is None:
            raise ValueError("an attentive gate looks at the experts' outputs: give it outputs [experts, batch, width]")
        with torch.autocast(self.key.device.type, enabled=False):
            x, outputs = self._examples(x, self.key), outputs.to(self.key.dtype)
            if self.training:
                with torch.no_grad():
                    self.mean_outputs.lerp_(outputs.mean(1), MOMENTUM)
            hidden = torch.relu(torch.einsum("bp,thp->bth", x, self.hidden_weight) + self.hidden_bias)
            attended = torch.einsum("bth,thw->btw", hidden, self._folded())
            return Routing(torch.softmax(torch.einsum("btw,nbw->btn", attended, outputs), -1))

    def _folded(self) -> Tensor:
        """W_q W_kᵀ/√h: (G W_q)(E W_k)ᵀ without making a key for each task, expert and example [tasks, width, width]."""
        return self.query @ self.key.mT / math.sqrt(self.width)

    def converged(self) -> Tensor:
        """Never: the gate needs every expert to choose [tasks]."""
        return torch.zeros(self.num_tasks, dtype=torch.bool)

    def require_converged(self, names: Sequence[str]) -> None:  # noqa: ARG002
        """It never has.

        Raises:
            NotConvergedError: always; says what to do.
        """
        raise NotConvergedError(
            "an attentive gate must see every expert's output before it can choose, so it cannot be frozen: "
            "train until it is distilled into an ordinary gate"
        )

    @torch.no_grad()
    def serving_gate(self) -> Softmax:
        """A new per-example softmax gate with this gate's hidden layer, to be trained on with the experts fixed.

        Its last layer starts where it agrees with the attention paid to experts that give their mean output.
        """
        gate = Softmax(self.num_tasks, self.num_experts, self.input_size, hidden=self.width)
        gate.hidden_weight.copy_(self.hidden_weight)
        gate.hidden_bias.copy_(self.hidden_bias)
        gate.weight.copy_(torch.einsum("thw,nw->tnh", self._folded(), self.mean_outputs))
        return gate.to(self.key)
