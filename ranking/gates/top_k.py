"""The Top-k gate (Shazeer et al., ICLR 2017, arXiv 1701.06538), static and per example, for all tasks at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.gates.base import Gate, Routing


class TopK(Gate):
    """softmax(KeepTopK(Ax + b)): exactly k experts at every step; discontinuous where the k-th expert changes.

    With ``noise``, training adds N(0, 1)·softplus(Nx + c) to the logits before the k largest are kept (equation 4);
    add ``regularizers.importance`` to the loss to balance the load.

    Args:
        num_tasks: number of tasks T, each with its own gate.
        num_experts: number of experts n ≥ 1.
        k: number of experts per task, 1 ≤ k ≤ n.
        input_size: width p of the examples, for a per-example gate; a static gate has A = 0.
        noise: add learned noise to the logits in training.

    Attributes:
        bias: b [tasks, experts].
        weight: A [tasks, experts, input_size] of a per-example gate.
    """

    weight: nn.Parameter
    noise_bias: nn.Parameter
    noise_weight: nn.Parameter

    def __init__(
        self, num_tasks: int, num_experts: int, k: int, input_size: int | None = None, noise: bool = False
    ) -> None:
        super().__init__(num_tasks, num_experts, k, input_size)
        self.noise = noise
        shape = (num_tasks, num_experts)
        # Distinct initial values: equal logits would give every task the same first k experts.
        self.bias = nn.Parameter(torch.empty(shape).uniform_(-0.02, 0.02))
        if noise:
            self.noise_bias = nn.Parameter(torch.zeros(shape))
        if input_size is not None:
            spread = 1 / math.sqrt(input_size)
            self.weight = nn.Parameter(torch.empty(*shape, input_size).uniform_(-spread, spread))
            if noise:
                self.noise_weight = nn.Parameter(torch.zeros(*shape, input_size))

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:  # noqa: ARG002
        """Compute the weights; exactly k per task are positive, or fewer where a float32 softmax underflows."""
        with torch.autocast(self.bias.device.type, enabled=False):
            logits = self._affine(x, "weight", self.bias)
            if self.noise and self.training:
                scale = F.softplus(self._affine(x, "noise_weight", self.noise_bias))
                logits = logits + torch.randn_like(logits) * scale
            values, indices = logits.topk(self.k, -1)
            return Routing(torch.zeros_like(logits).scatter(-1, indices, torch.softmax(values, -1)))

    def _affine(self, x: Tensor | None, weight: str, bias: Tensor) -> Tensor:
        """Return Wx + b [batch, tasks, experts], or b of a static gate [tasks, experts]."""
        if not self.per_example:
            return bias
        w: Tensor = getattr(self, weight)
        return torch.einsum("bp,tnp->btn", self._examples(x, w), w) + bias

    def converged(self) -> Tensor:
        """Return True for every task [tasks], because k experts are always used."""
        return torch.ones(self.num_tasks, dtype=torch.bool)
