"""The Gumbel-softmax gate of DSelect-k's appendix D: a Bernoulli selector for each expert (after AdaShare)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.gates.base import Gate, Routing, above_zero

LEAST_TEMPERATURE = 0.1
"""Below this the relaxed samples are binary and give no gradient."""


class GumbelSoftmax(Gate):
    """d(α, U)ᵢ = softmax(α)ᵢ Uᵢ with Uᵢ ~ Bernoulli(ψᵢ), static.

    Training draws relaxed samples U = sigmoid((θ + L)/τ), where ψ = sigmoid(θ) and L is logistic noise, the difference
    of two Gumbel ones. Otherwise Uᵢ = 1 where ψᵢ ≥ ½. The weights of a task sum to at most 1, as published. The number
    of experts is not bounded by a k: ``log_psi`` in the loss keeps it small.

    Args:
        num_tasks: T, each with a gate of its own.
        num_experts: n ≥ 1.

    Attributes:
        alpha: [tasks, experts].
        theta: logit of ψ [tasks, experts]; starts at ψ ≈ 0.73.
        gamma: the temperature τ; 0 once the choice is final.
    """

    concludes = True
    gamma: Tensor

    def __init__(self, num_tasks: int, num_experts: int) -> None:
        super().__init__(num_tasks, num_experts, num_experts)
        self.alpha = nn.Parameter(torch.zeros(num_tasks, num_experts))
        self.theta = nn.Parameter(torch.ones(num_tasks, num_experts))
        self.register_buffer("gamma", torch.tensor(1.0))

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:  # noqa: ARG002
        """Weights; random in training until the choice is final."""
        with torch.autocast(self.theta.device.type, enabled=False):
            chosen = (self.theta.detach() >= 0).to(self.theta.dtype)
            if self.training:
                uniform = torch.rand_like(self.theta).clamp(1e-6, 1 - 1e-6)
                relaxed = torch.sigmoid((self.theta + uniform.logit()) / self.gamma.clamp(min=LEAST_TEMPERATURE))
                chosen = torch.where(self.gamma > 0, relaxed, chosen)
            return Routing(torch.softmax(self.alpha, -1) * chosen)

    def log_psi(self) -> Tensor:
        """Σ log ψᵢ over tasks and experts (scalar), the penalty that makes experts rarer."""
        return F.logsigmoid(self.theta).sum()

    def anneal(self, gamma: float) -> None:
        """Sets the temperature τ; below ``LEAST_TEMPERATURE`` it has no further effect."""
        self.gamma.fill_(above_zero(gamma))

    def freeze_alpha(self, held: bool) -> None:
        """Keeps α as it is, or lets it learn."""
        self.alpha.requires_grad_(not held)

    def converged(self) -> Tensor:
        """Whether the choice is final [tasks]: before that, training still draws it."""
        return (self.gamma == 0).expand(self.num_tasks)

    @torch.no_grad()
    def finalize(self) -> int:
        """Fixes the experts with ψ ≥ ½; a task that has none keeps its likeliest one."""
        without = (self.theta < 0).all(1)
        likeliest = F.one_hot(self.theta.argmax(1), self.num_experts).bool()
        self.theta.masked_fill_(without.unsqueeze(1) & likeliest, 0.0)
        self.theta.requires_grad_(False)
        self.gamma.zero_()
        return int(without.sum())

    @torch.no_grad()
    def reopen(self, gamma: float) -> None:
        """Lets ψ be drawn and learn again."""
        self.anneal(gamma)
        self.theta.requires_grad_(True)
