"""DSelect-k gates, static and per example (Hazimeh et al., NeurIPS 2021, arXiv 2106.03760), for all tasks at once."""

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
"""Codes start uniform in ±INITIAL_CODE·γ: near the middle of the fractional region, so that the choice is learned."""

LEAST_SHARE = 0.05
"""``restrict`` leaves a code variable at least so open that it can still turn."""

Surplus = Literal["fold", "random", "penalty"]


class DSelectK(SelectorGate):
    """Chooses at most k of n experts for each task: q(α, Z) = Σᵢ softmax(α)ᵢ r(S(z⁽ⁱ⁾)) (equation 6).

    Selector i holds m = ⌈log₂ n⌉ code variables. r (equation 4) turns their smooth-step values into a distribution over
    2ᵐ codes, one-hot once every variable lies outside (−γ/2, γ/2). Given ``input_size`` the gate decides per example
    (section 3.2): α = Gx and z⁽ⁱ⁾ = W⁽ⁱ⁾x. Where the codes of some example would stay fractional whatever γ > 0 is,
    ``conclude`` goes to the limit γ = 0, in which S is the unit step: then every example uses at most k experts.

    If n is no power of two, some codes c ≥ n mean no expert (appendix B.2). ``surplus`` says what becomes of them:

    - ``fold``: c stands for expert c − n, so that r stays on the simplex without a penalty;
    - ``random``: c stands for an expert drawn once;
    - ``penalty``: c stands for nothing; add ``regularisers.surplus`` to the loss. ``conclude`` folds what is left.

    Args:
        num_tasks: T, each with a gate of its own.
        num_experts: n ≥ 1.
        k: selectors a task, 1 ≤ k ≤ n.
        gamma: width γ > 0 of the fractional region; the training schedule shrinks it until every code is binary.
        input_size: width p of the examples, for a per-example gate.
        surplus: see above.

    Attributes:
        z: code variables of a static gate [tasks, k, m].
        w: W of a per-example gate [tasks, k, m, input_size].

    Raises:
        ValueError: a size, k or gamma out of range.
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
            spread /= math.sqrt(input_size)  # z of a standardised example then starts about as far out
            self.w = nn.Parameter(torch.empty(num_tasks, k, m, input_size).uniform_(-spread, spread))
        self.register_buffer("gamma", torch.tensor(float(gamma)))
        self.register_buffer("bits", (codes[:, None] >> torch.arange(m)) & 1 == 1)  # [codes, m]
        self.register_buffer("expert_of_code", _assigned(codes, num_experts, surplus))
        if input_size is None:
            self.register_buffer("initial_codes", self._rounded())
            self.register_buffer("learned", torch.zeros(num_tasks, k, dtype=torch.bool))

    @property
    def available(self) -> list[int]:
        """As ``Gate.available``."""
        return sorted({expert for expert in self.expert_of_code.tolist() if expert < self.num_experts})

    def variables(self, x: Tensor | None = None) -> Tensor:
        """Code variables z [tasks, k, m], or Wx [batch, tasks, k, m]."""
        if self.per_example:
            return torch.einsum("bp,tkmp->btkm", self._examples(x, self.w), self.w)
        return self.z

    def selectors(self, x: Tensor | None = None) -> Tensor:
        """r(S(z⁽ⁱ⁾)): each selector's distribution over experts [..., tasks, k, experts]."""
        z = self.variables(x)
        open_ = self.gamma > 0
        s = smooth_step(z, torch.where(open_, self.gamma, 1.0))
        s = torch.where(open_, s, (z >= 0).to(s.dtype))
        code = s.new_ones(*s.shape[:-1], len(self.bits))
        for j in range(s.shape[-1]):  # a product of m factors; prod's backward would synchronise a GPU
            bit = s[..., j : j + 1]
            code = code * torch.where(self.bits[:, j], bit, 1.0 - bit)
        none = s.new_zeros(*s.shape[:-1], self.num_experts + 1)  # the last column: codes that stand for nothing
        return none.index_add(-1, self.expert_of_code, code)[..., : self.num_experts]

    def anneal(self, gamma: float) -> None:
        """Changes the width of the fractional region; codes outside it are binary."""
        self.gamma.fill_(above_zero(gamma))

    def codes(self) -> Tensor:
        """The expert each selector of a static gate would choose if its codes were rounded now [tasks, k], int64."""
        return self.expert_of_code[self._rounded()]

    def _rounded(self) -> Tensor:
        """The number that each static selector's code would be if it were rounded now [tasks, k]."""
        binary = (self.z.detach() >= 0).long()
        return (binary << torch.arange(binary.shape[-1], device=binary.device)).sum(-1)

    def codes_changed(self) -> int:
        """Selectors whose choice is not the one they started with; 0 means drawn, not learned.

        What ``restrict`` took away does not count, only what changed before it or after.
        """
        return int(self._changed().sum())

    def _changed(self) -> Tensor:
        return self.learned | (self.codes() != self.expert_of_code[self.initial_codes])

    def distance(self) -> Tensor:
        """How far each static selector is from binary [tasks, k]: max over its code of 1 − |z|/(γ/2), 0 once binary.

        A selector whose code stands for no expert is 1 away.
        """
        outside = 1.0 - self.z.detach().abs() / (self.gamma / 2)
        far = outside.clamp(min=0.0).amax(-1) if outside.shape[-1] else outside.new_zeros(outside.shape[:2])
        return torch.where(self.codes() < self.num_experts, far, 1.0)

    def converged(self) -> Tensor:
        """Static: every |z| ≥ γ/2, by task [tasks]. Not S == 1: rounding reaches that earlier. Per example: γ = 0."""
        if self.per_example:
            return (self.gamma == 0).expand(self.num_tasks) | (self.w.shape[2] == 0)
        return (self.distance() == 0).all(1)

    @torch.no_grad()
    def finalize(self) -> int:
        """Makes the choice exact and final; on a converged static gate this changes nothing but stops Z's learning.

        Static: code variables inside the fractional region move to its nearer edge, which keeps α and all that is
        binary. Per example: γ becomes 0. Codes that stand for no expert are folded onto one.
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
        nothing = self.expert_of_code == self.num_experts
        self.expert_of_code.copy_(torch.where(nothing, codes - self.num_experts, self.expert_of_code))
        return forced

    @torch.no_grad()
    def restrict(self, experts: Sequence[int]) -> None:
        """Leaves only these experts to choose from: the low code variables now count through them.

        A static selector starts from how its probability was divided among them, open enough to turn, and anew if it
        had none there; its other variables are parked outside the fractional region, where they neither matter nor
        learn.

        Raises:
            ValueError: no expert, one twice or one that does not exist.
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
            s = (shares / total.clamp(min=1e-12) @ bits).clamp(LEAST_SHARE, 1 - LEAST_SHARE)
            anew = torch.empty_like(s).uniform_(-INITIAL_CODE, INITIAL_CODE) * self.gamma
            self.z[..., :low] = torch.where(total > 0, inverse_smooth_step(s, self.gamma), anew)
            self.z[..., low:] = -self.gamma
        self.expert_of_code.copy_(codes)
        if not self.per_example:
            self.initial_codes.copy_(self._rounded())

    @torch.no_grad()
    def reopen(self, gamma: float) -> None:
        """Lets the codes learn again, from the choice as it is; static selectors may choose any expert again.

        A static selector keeps its expert with its code variables just inside the fractional region. A per-example gate
        goes on among the experts that it was left.
        """
        self.anneal(gamma)
        if self.per_example:
            self.w.requires_grad_(True)
            return
        chosen = self.codes()  # an expert's own code is its number
        self.expert_of_code.copy_(_assigned(torch.arange(len(self.bits)), self.num_experts, "fold"))
        s = self.bits[chosen].to(self.z).clamp(LEAST_SHARE, 1 - LEAST_SHARE)
        self.z.copy_(inverse_smooth_step(s, self.gamma))
        self.initial_codes.copy_(self._rounded())
        self.learned.zero_()
        self.z.requires_grad_(True)

    def require_converged(self, names: Sequence[str]) -> None:
        """Does nothing if every task's choice is final.

        Raises:
            NotConvergedError: names each open task, its furthest selector, and how far that is from binary.
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
        far = [
            f"task '{names[t]}' selector {int(worst.indices[t])} is {float(worst.values[t]):.1%} of γ/2 away"
            for t in worst.values.nonzero().flatten().tolist()
        ]
        if far:
            raise NotConvergedError(
                f"the gate has not converged: {'; '.join(far)}; train for more steps, or conclude() the gate"
            )


def _assigned(codes: Tensor, experts: int, surplus: Surplus) -> Tensor:
    """The expert of each code [codes]; ``experts`` means none."""
    match surplus:
        case "fold":
            instead = codes - experts
        case "random":
            instead = torch.randint(experts, codes.shape)
        case "penalty":
            instead = torch.full_like(codes, experts)
        case _:
            raise ValueError(f"surplus = {surplus!r}: choose fold, random or penalty")
    return torch.where(codes < experts, codes, instead)
