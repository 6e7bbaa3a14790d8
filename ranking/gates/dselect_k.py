"""The static DSelect-k gate (Hazimeh et al., NeurIPS 2021, arXiv 2106.03760), for all tasks at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ranking.errors import NotConvergedError
from ranking.gates.base import Gate
from ranking.gates.smooth_step import smooth_step
from ranking.selection import Selection

INITIAL_CODE = 0.02
"""Codes start uniform in ±INITIAL_CODE·γ: near the middle of the fractional region, so that the choice is learned."""


class DSelectK(Gate):
    """Chooses at most k of n experts for each task: q(α, Z) = Σᵢ softmax(α)ᵢ r(S(z⁽ⁱ⁾)) (equation 6).

    Selector i holds m = ⌈log₂ n⌉ code variables. r (equation 4) turns their smooth-step values into a distribution over
    2ᵐ codes, one-hot once every variable lies outside (−γ/2, γ/2). If n is no power of two, code c ≥ n stands for
    expert c − n, so that every code means a real expert and r stays on the simplex without a penalty (appendix B.2
    penalises surplus codes instead).

    Args:
        num_tasks: tasks, each with a gate of its own.
        num_experts: n ≥ 1.
        k: selectors a task, 1 ≤ k ≤ n.
        gamma: width γ > 0 of the fractional region; the training schedule shrinks it until every code is binary.

    Raises:
        ValueError: k or gamma out of range.
    """

    gamma: Tensor
    bits: Tensor
    expert_of_code: Tensor
    initial_codes: Tensor

    def __init__(self, num_tasks: int, num_experts: int, k: int, gamma: float = 1.0) -> None:
        super().__init__()
        if num_tasks < 1 or num_experts < 1:
            raise ValueError(f"num_tasks = {num_tasks} and num_experts = {num_experts}: both must be at least 1")
        if not 1 <= k <= num_experts:
            raise ValueError(f"k = {k}: choose 1 ≤ k ≤ num_experts = {num_experts}")
        if gamma <= 0:
            raise ValueError(f"gamma = {gamma}: must be above 0")
        self.num_tasks, self.num_experts, self.k = num_tasks, num_experts, k
        m = (num_experts - 1).bit_length()
        codes = torch.arange(2**m)
        self.z = nn.Parameter(torch.empty(num_tasks, k, m).uniform_(-INITIAL_CODE * gamma, INITIAL_CODE * gamma))
        self.alpha = nn.Parameter(torch.zeros(num_tasks, k))
        self.register_buffer("gamma", torch.tensor(float(gamma)))
        self.register_buffer("bits", (codes[:, None] >> torch.arange(m)) & 1 == 1)  # [codes, m]
        self.register_buffer("expert_of_code", torch.where(codes < num_experts, codes, codes - num_experts))
        self.register_buffer("initial_codes", self.codes())

    def set_gamma(self, gamma: float) -> None:
        """Changes the width of the fractional region; codes outside it are binary."""
        self.gamma.fill_(gamma)

    def selectors(self) -> Tensor:
        """r(S(z⁽ⁱ⁾)): each selector's distribution over experts [tasks, k, experts]."""
        # Gates stay in float32 under autocast: in bf16 a code would round to 0 or 1 long before it is binary.
        with torch.autocast(self.z.device.type, enabled=False):
            s = smooth_step(self.z, self.gamma)
            code = s.new_ones(self.num_tasks, self.k, len(self.bits))
            for j in range(s.shape[-1]):  # a product of m factors; prod's backward would synchronise a GPU
                bit = s[..., j : j + 1]
                code = code * torch.where(self.bits[:, j], bit, 1.0 - bit)
            return s.new_zeros(self.num_tasks, self.k, self.num_experts).index_add(2, self.expert_of_code, code)

    def forward(self) -> Tensor:
        """Weights [tasks, experts]."""
        with torch.autocast(self.z.device.type, enabled=False):
            return (torch.softmax(self.alpha, -1).unsqueeze(-1) * self.selectors()).sum(1)

    def overlap(self) -> Tensor:
        """Σ over tasks and pairs i < j of ⟨rᵢ, rⱼ⟩: how much a task's selectors agree (scalar); 0 if all differ."""
        r = self.selectors()
        return (r.sum(1).square().sum() - r.square().sum()) / 2

    def codes(self) -> Tensor:
        """The expert each selector would choose if its codes were rounded now [tasks, k], int64."""
        binary = (self.z.detach() >= 0).long()
        code = (binary << torch.arange(binary.shape[-1], device=binary.device)).sum(-1)
        return self.expert_of_code[code]

    def codes_changed(self) -> int:
        """Selectors whose choice is not the one they were initialised with; 0 means drawn, not learned."""
        return int((self.codes() != self.initial_codes).sum())

    def distance(self) -> Tensor:
        """How far each selector is from binary [tasks, k]: max over its code of 1 − |z|/(γ/2), 0 once binary."""
        outside = 1.0 - self.z.detach().abs() / (self.gamma / 2)
        return outside.clamp(min=0.0).amax(-1) if outside.shape[-1] else outside.new_zeros(outside.shape[:2])

    def converged(self) -> Tensor:
        """Whether every |z| ≥ γ/2, by task [tasks]. Not S == 1: rounding reaches that earlier."""
        return (self.z.detach().abs() >= self.gamma / 2).flatten(1).all(1)

    @torch.no_grad()
    def snap(self) -> None:
        """Moves every code variable inside the fractional region to its nearer edge; changes nothing once converged."""
        edge = self.gamma / 2
        self.z.copy_(torch.where(self.z.abs() >= edge, self.z, torch.where(self.z >= 0, edge, -edge)))

    def selection(self, tasks: Sequence[str] | None = None) -> Selection:
        """The chosen experts and their weights; selectors that chose the same expert are summed.

        Raises:
            NotConvergedError: names each unconverged task, its selectors, and how far they are.
        """
        names = [str(t) for t in range(self.num_tasks)] if tasks is None else list(tasks)
        distance = self.distance()
        far = [
            f"task '{names[t]}' selector {i} is {float(distance[t, i]):.1%} of γ/2 away"
            for t, i in distance.nonzero().tolist()
        ]
        if far:
            raise NotConvergedError(f"the gate has not converged: {'; '.join(far)}; train for more steps")
        alpha, codes = torch.softmax(self.alpha.detach().double(), -1), self.codes()
        chosen: dict[str, dict[int, float]] = {}
        for t, name in enumerate(names):
            weights: dict[int, float] = {}
            for expert, weight in zip(codes[t].tolist(), alpha[t].tolist(), strict=True):
                weights[expert] = weights.get(expert, 0.0) + weight
            chosen[name] = dict(sorted(weights.items()))
        return Selection(self.num_experts, self.k, chosen)
