"""The Gumbel-softmax gate of DSelect-k's appendix D: one Bernoulli selector per expert (after AdaShare)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.gates.base import Gate, Routing, above_zero

MIN_TEMPERATURE = 0.1
"""Temperature below which relaxed samples are binary and have no gradient."""


class GumbelSoftmax(Gate):
    """d(α, U)ᵢ = softmax(α)ᵢ Uᵢ with Uᵢ ~ Bernoulli(ψᵢ), static.

    Training draws relaxed samples U = sigmoid((θ + L)/τ), where ψ = sigmoid(θ) and L is logistic noise, the difference
    of two Gumbel variables. In eval mode Uᵢ = 1 where ψᵢ ≥ ½. The weights of a task sum to at most 1, as published.
    There is no bound k on the number of experts; ``log_psi`` in the loss keeps it small.

    Args:
        num_tasks: number of tasks T, each with its own gate.
        num_experts: number of experts n ≥ 1.

    Attributes:
        alpha: mixing logits α [tasks, experts].
        theta: logit of ψ [tasks, experts]; the initial ψ is about 0.73.
        gamma: temperature τ; 0 once the selection is final.
    """

    needs_finalize = True
    gamma: Tensor

    def __init__(self, num_tasks: int, num_experts: int) -> None:
        super().__init__(num_tasks, num_experts, num_experts)
        self.alpha = nn.Parameter(torch.zeros(num_tasks, num_experts))
        self.theta = nn.Parameter(torch.ones(num_tasks, num_experts))
        self.register_buffer("gamma", torch.tensor(1.0))

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:  # noqa: ARG002
        """Compute the weights, which are random in training until the selection is final."""
        with torch.autocast(self.theta.device.type, enabled=False):
            selected = (self.theta.detach() >= 0).to(self.theta.dtype)
            if self.training:
                uniform = torch.rand_like(self.theta).clamp(1e-6, 1 - 1e-6)
                relaxed = torch.sigmoid((self.theta + uniform.logit()) / self.gamma.clamp(min=MIN_TEMPERATURE))
                selected = torch.where(self.gamma > 0, relaxed, selected)
            return Routing(torch.softmax(self.alpha, -1) * selected)

    def log_psi(self) -> Tensor:
        """Return Σ log ψᵢ over tasks and experts (scalar), the penalty that reduces the number of experts."""
        return F.logsigmoid(self.theta).sum()

    def anneal(self, gamma: float) -> None:
        """Set the temperature τ; below ``MIN_TEMPERATURE`` it has no further effect."""
        self.gamma.fill_(above_zero(gamma))

    def freeze_alpha(self, frozen: bool) -> None:
        """Freeze or unfreeze α."""
        self.alpha.requires_grad_(not frozen)

    def converged(self) -> Tensor:
        """Return whether the selection is final [tasks]; before that, training samples it."""
        return (self.gamma == 0).expand(self.num_tasks)

    @torch.no_grad()
    def finalize(self) -> int:
        """Fix the experts with ψ ≥ ½; a task without one keeps its most likely expert."""
        no_expert = (self.theta < 0).all(1)
        most_likely = F.one_hot(self.theta.argmax(1), self.num_experts).bool()
        self.theta.masked_fill_(no_expert.unsqueeze(1) & most_likely, 0.0)
        self.theta.requires_grad_(False)
        self.gamma.zero_()
        return int(no_expert.sum())

    @torch.no_grad()
    def reopen(self, gamma: float) -> None:
        """Sample and train ψ again."""
        self.anneal(gamma)
        self.theta.requires_grad_(True)
