"""The ablation gate of DSelect-k's appendix C.1, with softmax selectors instead of binary codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ranking.gates.base import above_zero
from ranking.gates.selectors import SelectorGate

EXACT = 0.99
"""Probability of a selector's most likely expert from which on finalization does not count the selector as forced."""


class SoftmaxSelectors(SelectorGate):
    """h(α, β) = Σᵢ softmax(α)ᵢ softmax(β⁽ⁱ⁾/τ), static.

    A softmax is one-hot only in the limit. Anneal its temperature τ (``anneal``) or penalize its entropy
    (``regularizers.entropy``); ``finalize`` then takes the largest entry (the first of equal ones).

    Args:
        num_tasks: number of tasks T, each with its own gate.
        num_experts: number of experts n ≥ 1.
        k: number of selectors per task, 1 ≤ k ≤ n.

    Attributes:
        beta: selector logits β [tasks, k, experts].
        gamma: temperature τ; 0 once the selection is final.
    """

    gamma: Tensor

    def __init__(self, num_tasks: int, num_experts: int, k: int) -> None:
        super().__init__(num_tasks, num_experts, k)
        self.beta = nn.Parameter(torch.empty(num_tasks, k, num_experts).uniform_(-0.02, 0.02))
        self.register_buffer("gamma", torch.tensor(1.0))

    @property
    def available(self) -> list[int]:
        """Experts that the gate can select, ascending."""
        experts: list[int] = (~self.beta.detach().isneginf()).flatten(0, 1).any(0).nonzero().flatten().tolist()
        return experts

    def selectors(self, x: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return softmax(β⁽ⁱ⁾/τ), or one-hot vectors once final [tasks, k, experts]."""
        open_ = self.gamma > 0
        soft = torch.softmax(self.beta / torch.where(open_, self.gamma, 1.0), -1)
        one_hot = nn.functional.one_hot(self.codes(), self.num_experts).to(soft.dtype)
        return torch.where(open_, soft, one_hot)

    def anneal(self, gamma: float) -> None:
        """Set the temperature τ."""
        self.gamma.fill_(above_zero(gamma))

    def codes(self) -> Tensor:
        """Return the most likely expert of each selector [tasks, k], int64."""
        return self.beta.detach().argmax(-1)

    def distance(self) -> Tensor:
        """Return 1 − the largest probability of each selector [tasks, k]; 0 once the selection is final."""
        return 1.0 - self.selectors().detach().amax(-1)

    def converged(self) -> Tensor:
        """Return whether the selection is final [tasks]; a softmax only approaches one-hot."""
        return (self.gamma == 0).expand(self.num_tasks)

    @torch.no_grad()
    def finalize(self) -> int:
        """Replace every selector by its most likely expert."""
        forced = int((self.distance() > 1 - EXACT).sum())
        self.gamma.zero_()
        self.beta.requires_grad_(False)
        return forced

    @torch.no_grad()
    def restrict(self, experts: Sequence[int]) -> None:
        """Allow only these experts to be selected.

        Raises:
            ValueError: the list is empty, or an expert is repeated, does not exist or was removed before.
        """
        kept = self._distinct(experts)
        if not set(kept) <= set(self.available):
            raise ValueError(f"experts = {kept}: some of them were removed before")
        removed = torch.ones(self.num_experts, dtype=torch.bool, device=self.beta.device)
        removed[kept] = False
        self.beta.masked_fill_(removed, -torch.inf)

    @torch.no_grad()
    def reopen(self, gamma: float) -> None:
        """Make β trainable again at temperature γ; removed experts return as each selector's least likely ones."""
        self.anneal(gamma)
        lowest = self.beta.masked_fill(self.beta.isneginf(), torch.inf).amin(-1, keepdim=True)
        self.beta.copy_(torch.maximum(self.beta, lowest))
        self.beta.requires_grad_(True)
