"""Base class of gates with k selectors, which α mixes; equal selectors are summed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ranking.gates.base import Gate, Routing
from ranking.selection import Selection


class SelectorGate(Gate):
    """A gate Σᵢ softmax(α)ᵢ rᵢ of k selectors rᵢ, each of which converges to one expert (equation 6).

    α is a parameter [tasks, k] of a static gate; a per-example gate has α = Gx with G [tasks, k, input_size].
    """

    needs_finalize = True
    alpha: nn.Parameter
    g: nn.Parameter

    def __init__(self, num_tasks: int, num_experts: int, k: int, input_size: int | None = None) -> None:
        super().__init__(num_tasks, num_experts, k, input_size)
        if input_size is None:
            self.alpha = nn.Parameter(torch.zeros(num_tasks, k))
        else:
            self.g = nn.Parameter(torch.zeros(num_tasks, k, input_size))

    @abstractmethod
    def selectors(self, x: Tensor | None = None) -> Tensor:
        """Return the distribution of each selector over the experts [..., tasks, k, experts]."""

    @abstractmethod
    def codes(self) -> Tensor:
        """Return the expert of each static selector, rounded if necessary [tasks, k], int64."""

    @abstractmethod
    def distance(self) -> Tensor:
        """Return the distance of each static selector from an exact selection [tasks, k], from 0 (exact) to 1."""

    def logits(self, x: Tensor | None = None) -> Tensor:
        """Return α [tasks, k], or Gx [batch, tasks, k]."""
        if self.per_example:
            return torch.einsum("bp,tkp->btk", self._examples(x, self.g), self.g)
        return self.alpha

    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:  # noqa: ARG002
        """Compute weights and selectors, always in float32: bfloat16 would round codes to 0 or 1 too early."""
        device = next(self.parameters()).device.type
        with torch.autocast(device, enabled=False):
            selectors = self.selectors(x)
            shares = torch.softmax(self.logits(x), -1).unsqueeze(-1)
            return Routing((shares * selectors).sum(-2), selectors)

    def _distinct(self, experts: Sequence[int]) -> list[int]:
        """Return these experts, ascending.

        Raises:
            ValueError: the list is empty, or an expert is repeated or does not exist.
        """
        kept = sorted(set(experts))
        if not kept or len(kept) != len(experts) or kept[0] < 0 or kept[-1] >= self.num_experts:
            raise ValueError(f"experts = {list(experts)}: pass distinct numbers from 0 to {self.num_experts - 1}")
        return kept

    def freeze_alpha(self, frozen: bool) -> None:
        """Freeze or unfreeze the mixing weights α of the selectors."""
        (self.g if self.per_example else self.alpha).requires_grad_(not frozen)

    def selection(self, tasks: Sequence[str] | None = None, x: Tensor | None = None) -> Selection:
        """Return the selection; weights of selectors with the same expert are summed."""
        if self.per_example:
            return super().selection(tasks, x)
        names = self._names(tasks)
        self.require_converged(names)
        shares, codes = torch.softmax(self.alpha.detach().double(), -1), self.codes()
        selected: dict[str, dict[int, float]] = {}
        for t, name in enumerate(names):
            weights: dict[int, float] = {}
            for expert, weight in zip(codes[t].tolist(), shares[t].tolist(), strict=True):
                weights[expert] = weights.get(expert, 0.0) + weight
            selected[name] = dict(sorted(weights.items()))
        return Selection(self.num_experts, self.k, selected)
