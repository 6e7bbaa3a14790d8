"""Brings a gate from exploring to an exact choice: γ annealing, α hold, experts budget, snap.

Driven by the optimiser's step alone, so that a schedule means the same for every batch size and resumed run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.distributed import DistContext
from ranking.gates import Gate


class GateSchedule:
    """Phases: explore (γ constant) → anneal (γ geometric to its final value) → conclude → chosen experts only.

    A gate that never concludes (Top-k, softmax) is done from the start: every step's choice is as final as the last.

    Args:
        config: moments as fractions of the steps.
        gate: what converges.
        steps: optimiser steps of the whole training.
        budget: the most experts that all tasks together may use; None for no bound.
        world: whose ranks must come to the same choice.
        chosen: the choice is final already.

    Attributes:
        binary_at_step: the first step after which the gate had converged and stayed so; None until then.
        snapped_codes: selectors that the ramp had not made binary, so that the snap had to.
        done: the choice is final.
    """

    def __init__(
        self,
        config: ConvergenceConfig,
        gate: Gate,
        steps: int,
        budget: int | None = None,
        world: DistContext | None = None,
        *,
        chosen: bool = False,
    ) -> None:
        self._config = config
        self._gate = gate
        self._steps = steps
        self._budget = budget
        self._world = world or DistContext()
        self.binary_at_step: int | None = 0 if chosen else None
        self.snapped_codes = 0
        self.done = chosen or not gate.concludes
        self._chosen = chosen
        self._held = not chosen
        gate.freeze_alpha(self._held)
        if chosen:
            gate.finalize()  # on a final choice this only stops its codes from learning

    @property
    def last_step(self) -> int:
        """The step at whose end the choice becomes final."""
        return max(1, round(self._config.anneal_until * self._steps))

    @property
    def chosen_at(self) -> int:
        """The step from which training only refines: 0 if the choice was final before it."""
        return 0 if self._chosen else self.last_step

    @property
    def budget_step(self) -> int:
        """The step at whose end the experts beyond the budget are dropped."""
        return min(max(1, round(self._config.budget_at * self._steps)), self.last_step)

    @property
    def experts(self) -> list[int]:
        """Experts that some task can still choose, ascending; of a final static choice, those that one did."""
        gate = self._gate
        if self.done and gate.concludes and not gate.per_example and bool(gate.converged().all()):
            return gate.selection().experts_used
        return gate.available

    def phase(self) -> str:
        """``selected`` once the choice is final, ``selecting`` before."""
        return "selected" if self.done else "selecting"

    def ramp(self, step: int) -> float:
        """How far the annealing has come at this step (the first is 1): 0 before it starts, 1 from its end."""
        start = self._config.anneal_from * self._steps
        return min(max((step - start) / max(self.last_step - start, 1.0), 0.0), 1.0)

    def gamma_at(self, step: int) -> float:
        """γ in effect for this step."""
        config = self._config
        return float(config.gamma * (config.final_gamma / config.gamma) ** self.ramp(step))

    def before(self, step: int) -> bool:
        """Sets γ and whether the chosen experts' weights learn.

        Returns:
            Whether they begin to learn with this step.
        """
        if not self.done:
            self._gate.anneal(self.gamma_at(step))
        released = self._held and step > self._config.hold_alpha_until * self._steps
        if released:
            self._gate.freeze_alpha(False)
            self._held = False
        return released

    def after(self, step: int, weights: Tensor) -> bool:
        """Notes whether the gate has converged, enforces the budget, and concludes when it is time.

        Args:
            step: just finished.
            weights: of that step, [..., tasks, experts].

        Returns:
            Whether experts were dropped or the choice became final.
        """
        if self.done:
            return False
        cut = self._budget is not None and step == self.budget_step and self._budget < len(self.experts)
        if cut:
            self._cut(weights)
        converged = bool(self._gate.converged().all())
        self.binary_at_step = (self.binary_at_step or step) if converged else None
        if step < self.last_step:
            return cut
        self.snapped_codes = self._gate.finalize()
        self.done = True
        if bool(self._gate.converged().all()):
            self.binary_at_step = self.binary_at_step or step
        return True

    def _cut(self, weights: Tensor) -> None:
        """Keeps the experts that all tasks together weigh most."""
        use = self._world.sum(weights.detach().flatten(0, -2).sum(0))
        self._gate.restrict(sorted(use.topk(self._budget or 0).indices.tolist()))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the gate's weights."""
        return {"binary_at_step": self.binary_at_step, "snapped_codes": self.snapped_codes, "done": self.done}

    def restore(self, state: Mapping[str, Any], gate: Gate) -> None:
        """Goes on from ``state``, with a gate whose weights are those of that moment."""
        self.binary_at_step, self.snapped_codes = state["binary_at_step"], state["snapped_codes"]
        self.done, self._gate = state["done"], gate
        gate.freeze_alpha(self._held)
        if self.done:
            gate.finalize()  # on a final choice this only stops its codes from learning
