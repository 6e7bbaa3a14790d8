"""The DSelect-k gate of all tasks, static and per example (Hazimeh et al., NeurIPS 2021, arXiv 2106.03760)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ranking.errors import NotConvergedError
from ranking.gates.base import above_zero
from ranking.gates.selectors import SelectorGate
from ranking.gates.smooth_step import inverse_smooth_step, smooth_step

INITIAL_CODE = 0.02
"""Codes start uniform in ±INITIAL_CODE·γ, in the middle of the fractional region, so that selections are learned."""

START_SHARE = 0.01
"""Distance from 0 and 1 of the smooth-step values after ``start_from``."""

MIN_SHARE = 0.05
"""Minimum distance from 0 and 1 of the smooth-step values after ``restrict``, so that codes can still change."""

Surplus = Literal["fold", "random", "penalty"]


class DSelectK(SelectorGate):
    """Selects at most k of n experts per task: q(α, Z) = Σᵢ softmax(α)ᵢ r(S(z⁽ⁱ⁾)) (equation 6).

    Selector i has m = ⌈log₂ n⌉ code variables. r (equation 4) maps their smooth-step values to a distribution over 2ᵐ
    codes, which is one-hot once every variable lies outside (−γ/2, γ/2). With ``input_size`` the gate selects per
    example (section 3.2): α = Gx and z⁽ⁱ⁾ = W⁽ⁱ⁾x. For any γ > 0 some examples can have fractional codes, so
    ``finalize`` takes the limit γ = 0, in which S is the unit step and every example uses at most k experts.

    If n is not a power of two, the codes c ≥ n do not correspond to an expert (appendix B.2). ``surplus`` selects their
    treatment:

    - ``fold``: c means expert c − n, so that r stays on the simplex without a penalty;
    - ``random``: c means a fixed, randomly drawn expert;
    - ``penalty``: c means no expert; add ``regularizers.surplus`` to the loss. ``finalize`` folds the remaining ones.

    Args:
        num_tasks: number of tasks T, each with its own gate.
        num_experts: number of experts n ≥ 1.
        k: number of selectors per task, 1 ≤ k ≤ n.
        gamma: width γ > 0 of the fractional region; the training schedule shrinks it until every code is binary.
        input_size: width p of the examples, for a per-example gate.
        surplus: treatment of codes without an expert, see above.

    Attributes:
        z: code variables of a static gate [tasks, k, m].
        w: weights W of a per-example gate [tasks, k, m, input_size].

    Raises:
        ValueError: a size, k or gamma is out of range.
    """

    z: nn.Parameter
    w: nn.Parameter
    gamma: Tensor
    bits: Tensor
    expert_of_code: Tensor
    initial_codes: Tensor
    learned: Tensor

    def __init__(
        self,
        num_tasks: int,
        num_experts: int,
        k: int,
        gamma: float = 1.0,
        input_size: int | None = None,
        surplus: Surplus = "fold",
    ) -> None:
        super().__init__(num_tasks, num_experts, k, input_size)
        m = (num_experts - 1).bit_length()
        codes = torch.arange(2**m)
        spread = INITIAL_CODE * above_zero(gamma)
        if input_size is None:
            self.z = nn.Parameter(torch.empty(num_tasks, k, m).uniform_(-spread, spread))
        else:
            spread /= math.sqrt(input_size)  # The codes of a standardized example then start in the same range.
            self.w = nn.Parameter(torch.empty(num_tasks, k, m, input_size).uniform_(-spread, spread))
        self.register_buffer("gamma", torch.tensor(float(gamma)))
        self.register_buffer("bits", (codes[:, None] >> torch.arange(m)) & 1 == 1)  # [codes, m]
        self.register_buffer("expert_of_code", _expert_of_code(codes, num_experts, surplus))
        if input_size is None:
            self.register_buffer("initial_codes", self._rounded_codes())
            self.register_buffer("learned", torch.zeros(num_tasks, k, dtype=torch.bool))

    @property
    def available(self) -> list[int]:
        """Experts that the gate can select, ascending."""
        return sorted({expert for expert in self.expert_of_code.tolist() if expert < self.num_experts})

    def variables(self, x: Tensor | None = None) -> Tensor:
        """Return the code variables z [tasks, k, m], or Wx [batch, tasks, k, m]."""
        if self.per_example:
            return torch.einsum("bp,tkmp->btkm", self._examples(x, self.w), self.w)
        return self.z

    def selectors(self, x: Tensor | None = None) -> Tensor:
        """Return r(S(z⁽ⁱ⁾)), the distribution of each selector over experts [..., tasks, k, experts]."""
        z = self.variables(x)
        open_ = self.gamma > 0
        s = smooth_step(z, torch.where(open_, self.gamma, 1.0))
        s = torch.where(open_, s, (z >= 0).to(s.dtype))
        code = s.new_ones(*s.shape[:-1], len(self.bits))
        for j in range(s.shape[-1]):  # A product of m factors; the backward pass of prod would synchronize a GPU.
            bit = s[..., j : j + 1]
            code = code * torch.where(self.bits[:, j], bit, 1.0 - bit)
        empty = s.new_zeros(*s.shape[:-1], self.num_experts + 1)  # The last column collects codes without an expert.
        return empty.index_add(-1, self.expert_of_code, code)[..., : self.num_experts]

    def anneal(self, gamma: float) -> None:
        """Set the width γ of the fractional region; codes outside it are binary."""
        self.gamma.fill_(above_zero(gamma))

    def codes(self) -> Tensor:
        """Return the expert of each static selector's rounded code [tasks, k], int64."""
        return self.expert_of_code[self._rounded_codes()]

    def _rounded_codes(self) -> Tensor:
        """Return the rounded code number of each static selector [tasks, k]."""
        binary = (self.z.detach() >= 0).long()
        return (binary << torch.arange(binary.shape[-1], device=binary.device)).sum(-1)

    def codes_changed(self) -> int:
        """Count selectors whose expert differs from the initial one; 0 means that the selection was not learned.

        Changes caused by ``restrict`` itself do not count.
        """
        return int(self._changed().sum())

    def _changed(self) -> Tensor:
        return self.learned | (self.codes() != self.expert_of_code[self.initial_codes])

    def distance(self) -> Tensor:
        """Return the distance of each static selector from binary [tasks, k]: max over its code of 1 − |z|/(γ/2), or 0.

        The distance of a selector whose code does not correspond to an expert is 1.
        """
        outside = 1.0 - self.z.detach().abs() / (self.gamma / 2)
        distance = outside.clamp(min=0.0).amax(-1) if outside.shape[-1] else outside.new_zeros(outside.shape[:2])
        return torch.where(self.codes() < self.num_experts, distance, 1.0)

    def converged(self) -> Tensor:
        """Return whether each task has converged [tasks]: every |z| ≥ γ/2 (static), or γ = 0 (per example).

        S == 1 is not used as the criterion, because rounding reaches it earlier.
        """
        if self.per_example:
            return (self.gamma == 0).expand(self.num_tasks) | (self.w.shape[2] == 0)
        return (self.distance() == 0).all(1)

    @torch.no_grad()
    def finalize(self) -> int:
        """Make the selection exact and final; for a converged static gate this only stops the training of Z.

        Static: code variables inside the fractional region move to its nearer edge; α and binary codes do not change.
        Per example: γ becomes 0. Codes without an expert are folded onto one.
        """
        if self.per_example:
            forced = 0
            self.gamma.zero_()
            self.w.requires_grad_(False)
        else:
            forced = int((self.distance() > 0).sum())
            edge = self.gamma / 2
            self.z.copy_(torch.where(self.z.abs() >= edge, self.z, torch.where(self.z >= 0, edge, -edge)))
            self.z.requires_grad_(False)
        codes = torch.arange(len(self.expert_of_code), device=self.gamma.device)
        unassigned = self.expert_of_code == self.num_experts
        self.expert_of_code.copy_(torch.where(unassigned, codes - self.num_experts, self.expert_of_code))
        return forced

    @torch.no_grad()
    def restrict(self, experts: Sequence[int]) -> None:
        """Allow only these experts; the low code variables then enumerate them.

        A static selector starts from its previous probabilities for these experts, open enough to change, or from a new
        random code if they were 0. Its remaining variables move outside the fractional region, where they have no
        effect and no gradient.

        Raises:
            ValueError: the list is empty, or an expert is repeated or does not exist.
        """
        kept = self._distinct(experts)
        low = (len(kept) - 1).bit_length()
        position = torch.arange(len(self.bits)) % 2**low
        position = torch.where(position < len(kept), position, position - len(kept))
        codes = torch.tensor(kept)[position].to(self.expert_of_code)
        if not self.per_example:
            self.learned.copy_(self._changed())
            shares = self.selectors()[..., kept]
            total = shares.sum(-1, keepdim=True)
            bits = self.bits[: len(kept), :low].to(shares)
            s = (shares / total.clamp(min=1e-12) @ bits).clamp(MIN_SHARE, 1 - MIN_SHARE)
            initial = torch.empty_like(s).uniform_(-INITIAL_CODE, INITIAL_CODE) * self.gamma
            self.z[..., :low] = torch.where(total > 0, inverse_smooth_step(s, self.gamma), initial)
            self.z[..., low:] = -self.gamma
        self.expert_of_code.copy_(codes)
        if not self.per_example:
            self.initial_codes.copy_(self._rounded_codes())

    @torch.no_grad()
    def start_from(self, experts: Tensor) -> None:
        """Let each static selector start from an expert [tasks, k], with codes near the edge of the fractional region.

        Call it before training. The selectors can still change, and such changes count as learned.
        """
        self._open_at(experts.to(self.bits.device), START_SHARE)

    def _open_at(self, experts: Tensor, share: float) -> None:
        """Set the codes to those of experts [tasks, k], with smooth-step values this far from 0 and 1.

        The code of an expert is its number.
        """
        s = self.bits[experts].to(self.z).clamp(share, 1 - share)
        self.z.copy_(inverse_smooth_step(s, self.gamma))
        self.initial_codes.copy_(self._rounded_codes())

    @torch.no_grad()
    def reopen(self, gamma: float) -> None:
        """Make the codes trainable again; static selectors can then select any expert.

        A static selector keeps its expert, with its code variables just inside the fractional region. A per-example
        gate stays restricted to its current experts.
        """
        self.anneal(gamma)
        if self.per_example:
            self.w.requires_grad_(True)
            return
        selected = self.codes()
        self.expert_of_code.copy_(_expert_of_code(torch.arange(len(self.bits)), self.num_experts, "fold"))
        self._open_at(selected, MIN_SHARE)
        self.learned.zero_()
        self.z.requires_grad_(True)

    def require_converged(self, names: Sequence[str]) -> None:
        """Check that every task's selection is final.

        Raises:
            NotConvergedError: names each open task, its furthest selector, and that selector's distance from binary.
        """
        if self.per_example:
            if not bool(self.converged().all()):
                raise NotConvergedError(
                    "the per-example gate has not converged: its codes become exact for every example when the "
                    "ramp ends; train for more steps"
                )
            return
        distance = self.distance()
        worst = distance.max(1)
        open_selectors = [
            f"task '{names[t]}' selector {int(worst.indices[t])} is {float(worst.values[t]):.1%} of γ/2 away"
            for t in worst.values.nonzero().flatten().tolist()
        ]
        if open_selectors:
            raise NotConvergedError(
                f"the gate has not converged: {'; '.join(open_selectors)}; train for more steps, or finalize() the gate"
            )


def _expert_of_code(codes: Tensor, experts: int, surplus: Surplus) -> Tensor:
    """Return the expert of each code [codes]; the value ``experts`` means no expert."""
    match surplus:
        case "fold":
            substitute = codes - experts
        case "random":
            substitute = torch.randint(experts, codes.shape)
        case "penalty":
            substitute = torch.full_like(codes, experts)
        case _:
            raise ValueError(f"surplus = {surplus!r}: choose fold, random or penalty")
    return torch.where(codes < experts, codes, substitute)
