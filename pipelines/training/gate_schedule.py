"""Schedule that takes a gate from exploration to an exact selection: γ annealing, α freeze, experts budget, snapping.

It depends on the optimizer step only, so that it is the same for every batch size and for a resumed run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.distributed import DistContext
from ranking.gates import Gate


class GateSchedule:
    """Phases: explore (constant γ), anneal (γ decays geometrically), finalize, then train the selected experts only.

    A gate that is never finalized (Top-k, softmax) is done from the start.

    Args:
        config: points in time, as fractions of all steps.
        gate: the gate to schedule.
        steps: optimizer steps of the whole training.
        budget: maximum number of experts over all tasks; None for no limit.
        context: the ranks, which must agree on the selection.
        preselected: the selection is final from the start.

    Attributes:
        binary_at_step: first step after which the gate had converged and stayed converged; None until then.
        snapped_codes: selectors that were not binary at the end of annealing and had to be snapped.
        done: whether the selection is final.
    """

    def __init__(
        self,
        config: ConvergenceConfig,
        gate: Gate,
        steps: int,
        budget: int | None = None,
        context: DistContext | None = None,
        *,
        preselected: bool = False,
    ) -> None:
        self._config = config
        self._gate = gate
        self._steps = steps
        self._budget = budget
        self._context = context or DistContext()
        self.binary_at_step: int | None = 0 if preselected else None
        self.snapped_codes = 0
        self.done = preselected or not gate.needs_finalize
        self._preselected = preselected
        self._alpha_frozen = not preselected
        gate.freeze_alpha(self._alpha_frozen)
        if preselected:
            gate.finalize()  # for a final selection, this only stops the codes from learning

    @property
    def finalize_step(self) -> int:
        """Step at whose end the selection becomes final."""
        return max(1, round(self._config.anneal_until * self._steps))

    @property
    def selected_at_step(self) -> int:
        """Step after which only the selected experts train: 0 if the selection was final from the start."""
        return 0 if self._preselected else self.finalize_step

    @property
    def budget_step(self) -> int:
        """Step at whose end the experts beyond the budget are removed."""
        return min(max(1, round(self._config.budget_at * self._steps)), self.finalize_step)

    @property
    def experts(self) -> list[int]:
        """Experts that a task can still select, ascending; for a final static selection, the selected ones."""
        gate = self._gate
        if self.done and gate.needs_finalize and not gate.per_example and bool(gate.converged().all()):
            return gate.selection().experts_used
        return gate.available

    def phase(self) -> str:
        """Return ``selected`` if the selection is final, otherwise ``selecting``."""
        return "selected" if self.done else "selecting"

    def anneal_progress(self, step: int) -> float:
        """Return the progress of the annealing at a step (from 1): 0 before its start, 1 from its end."""
        start = self._config.anneal_from * self._steps
        return min(max((step - start) / max(self.finalize_step - start, 1.0), 0.0), 1.0)

    def gamma_at(self, step: int) -> float:
        """Return γ at a step."""
        config = self._config
        return float(config.gamma * (config.final_gamma / config.gamma) ** self.anneal_progress(step))

    def begin_step(self, step: int) -> bool:
        """Set γ, and unfreeze α when it is time.

        Returns:
            Whether α starts to learn with this step.
        """
        if not self.done:
            self._gate.anneal(self.gamma_at(step))
        unfreeze = self._alpha_frozen and step > self._config.hold_alpha_until * self._steps
        if unfreeze:
            self._gate.freeze_alpha(False)
            self._alpha_frozen = False
        return unfreeze

    def end_step(self, step: int, weights: Tensor) -> bool:
        """Record whether the gate has converged; apply the budget and finalize the selection when it is time.

        Args:
            step: the step that has finished.
            weights: gate weights of that step [..., tasks, experts].

        Returns:
            Whether experts were removed or the selection became final.
        """
        if self.done:
            return False
        over_budget = self._budget is not None and step == self.budget_step and self._budget < len(self.experts)
        if over_budget:
            self._apply_budget(weights)
        converged = bool(self._gate.converged().all())
        self.binary_at_step = (self.binary_at_step or step) if converged else None
        if step < self.finalize_step:
            return over_budget
        self.snapped_codes = self._gate.finalize()
        self.done = True
        if bool(self._gate.converged().all()):
            self.binary_at_step = self.binary_at_step or step
        return True

    def _apply_budget(self, weights: Tensor) -> None:
        """Keep the experts with the largest total weight over all tasks and ranks."""
        totals = self._context.sum(weights.detach().flatten(0, -2).sum(0))
        self._gate.restrict(sorted(totals.topk(self._budget or 0).indices.tolist()))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the gate's weights."""
        return {"binary_at_step": self.binary_at_step, "snapped_codes": self.snapped_codes, "done": self.done}

    def restore(self, state: Mapping[str, Any], gate: Gate) -> None:
        """Restore a state, with a gate whose weights are those of the same checkpoint."""
        self.binary_at_step, self.snapped_codes = state["binary_at_step"], state["snapped_codes"]
        self.done, self._gate = state["done"], gate
        gate.freeze_alpha(self._alpha_frozen)
        if self.done:
            gate.finalize()  # for a final selection, this only stops the codes from learning
