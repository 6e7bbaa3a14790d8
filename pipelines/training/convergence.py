"""Brings the gates from exploring to an exactly binary choice: γ annealing, α hold, overlap penalty, snap.

Driven by the optimiser's step alone, so that a schedule means the same for every batch size and resumed run.
"""

from __future__ import annotations

from torch import Tensor

from pipelines.config import ConvergenceConfig
from ranking.gates import DSelectK


class Convergence:
    """Phases: explore (γ constant) → anneal (γ geometric to its final value) → snap → chosen experts only.

    Args:
        config: moments as fractions of the steps.
        gate: what converges.
        steps: optimiser steps of the whole training.

    Attributes:
        binary_at_step: the first step after which every code was binary and stayed so; None until then.
        snapped_codes: selectors that the ramp had not made binary, so that the snap had to.
        done: the choice is final.
    """

    def __init__(self, config: ConvergenceConfig, gate: DSelectK, steps: int) -> None:
        self._config = config
        self._gate = gate
        self._steps = steps
        self.binary_at_step: int | None = None
        self.snapped_codes = 0
        self.done = False
        gate.alpha.requires_grad_(False)

    @property
    def last_step(self) -> int:
        """The step at whose end the gates are snapped."""
        return max(1, round(self._config.anneal_until * self._steps))

    def phase(self) -> str:
        """``selected`` once the choice is final, ``selecting`` before."""
        return "selected" if self.done else "selecting"

    def gamma_at(self, step: int) -> float:
        """γ in effect for this step (the first is 1)."""
        config = self._config
        start = config.anneal_from * self._steps
        ramp = min(max((step - start) / max(self.last_step - start, 1.0), 0.0), 1.0)
        return float(config.gamma * (config.final_gamma / config.gamma) ** ramp)

    def before(self, step: int) -> None:
        """Sets γ and whether α learns."""
        if not self.done:
            self._gate.set_gamma(self.gamma_at(step))
        if step > self._config.hold_alpha_until * self._steps:
            self._gate.alpha.requires_grad_(True)

    def penalty(self, step: int) -> Tensor | float:
        """What is added to the data loss at this step: the fading penalty on selectors that agree."""
        config = self._config
        left = 1.0 - step / (config.overlap_until * self._steps)
        return 0.0 if self.done or left <= 0 else config.overlap_weight * left * self._gate.overlap()

    def after(self, step: int) -> bool:
        """Notes whether the codes are binary; True at the one step that makes the choice final."""
        if self.done:
            return False
        binary = bool(self._gate.converged().all())
        self.binary_at_step = (self.binary_at_step or step) if binary else None
        if step < self.last_step:
            return False
        self.snapped_codes = int((self._gate.distance() > 0).sum())
        self._gate.snap()
        self._gate.z.requires_grad_(False)
        self.binary_at_step = self.binary_at_step or step
        self.done = True
        return True
