"""The ablation gate of DSelect-k's appendix C.1: its selectors are softmaxes instead of binary codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ranking.gates.base import above_zero
from ranking.gates.selectors import SelectorGate

EXACT = 0.99
"""A selector whose largest probability is below this had not made up its mind when its choice was forced."""


class SoftmaxSelectors(SelectorGate):
    """h(α, β) = Σᵢ softmax(α)ᵢ softmax(β⁽ⁱ⁾/τ), static.

    A softmax becomes one-hot only in the limit: anneal its temperature τ (``anneal``) or penalise its entropy
    (``regularisers.entropy``), then ``conclude`` takes the largest entry (the first, if two are equal).

    Args:
        num_tasks: T, each with a gate of its own.
        num_experts: n ≥ 1.
        k: selectors a task, 1 ≤ k ≤ n.

    Attributes:
        beta: [tasks, k, experts].
        gamma: the temperature τ; 0 once the choice is final.
    """

    gamma: Tensor

    def __init__(self, num_tasks: int, num_experts: int, k: int) -> None:
        super().__init__(num_tasks, num_experts, k)
        self.beta = nn.Parameter(torch.empty(num_tasks, k, num_experts).uniform_(-0.02, 0.02))
        self.register_buffer("gamma", torch.tensor(1.0))

    @property
    def available(self) -> list[int]:
        """As ``Gate.available``."""
        experts: list[int] = (~self.beta.detach().isneginf()).flatten(0, 1).any(0).nonzero().flatten().tolist()
        return experts

    def selectors(self, x: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """softmax(β⁽ⁱ⁾/τ), or one-hot once final [tasks, k, experts]."""
        open_ = self.gamma > 0
        soft = torch.softmax(self.beta / torch.where(open_, self.gamma, 1.0), -1)
        one_hot = nn.functional.one_hot(self.codes(), self.num_experts).to(soft.dtype)
        return torch.where(open_, soft, one_hot)

    def anneal(self, gamma: float) -> None:
        """Sets the temperature τ."""
        self.gamma.fill_(above_zero(gamma))

    def codes(self) -> Tensor:
        """The most likely expert of each selector [tasks, k], int64."""
        return self.beta.detach().argmax(-1)

    def distance(self) -> Tensor:
        """1 − each selector's largest probability [tasks, k]; 0 once the choice is final."""
        return 1.0 - self.selectors().detach().amax(-1)

    def converged(self) -> Tensor:
        """Whether the choice is final [tasks]: softmaxes only come near to one-hot."""
        return (self.gamma == 0).expand(self.num_tasks)

    @torch.no_grad()
    def finalize(self) -> int:
        """Turns every selector into its most likely expert."""
        forced = int((self.distance() > 1 - EXACT).sum())
        self.gamma.zero_()
        self.beta.requires_grad_(False)
        return forced

    @torch.no_grad()
    def restrict(self, experts: Sequence[int]) -> None:
        """Leaves only these experts to choose from.

        Raises:
            ValueError: no expert, one twice, or one that does not exist or was dropped before.
        """
        kept = self._distinct(experts)
        if not set(kept) <= set(self.available):
            raise ValueError(f"experts = {kept}: some of them were dropped before")
        dropped = torch.ones(self.num_experts, dtype=torch.bool, device=self.beta.device)
        dropped[kept] = False
        self.beta.masked_fill_(dropped, -torch.inf)

    @torch.no_grad()
    def reopen(self, gamma: float) -> None:
        """Lets β learn again at temperature γ; experts that were dropped come back as each selector's least likely."""
        self.anneal(gamma)
        least = self.beta.masked_fill(self.beta.isneginf(), torch.inf).amin(-1, keepdim=True)
        self.beta.copy_(torch.maximum(self.beta, least))
        self.beta.requires_grad_(True)
