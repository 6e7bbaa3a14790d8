"""Penalties on the gate, each with its schedule, added to the loss of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.gate_schedule import GateSchedule
from ranking.gates import Gate, GumbelSoftmax, Routing, regularizers
from ranking.model.mmoe import ForwardOutput
from ranking.settings.gate import GateConfig


class Regularization:
    """Weighted sum of the penalties that a gate's configuration enables.

    Until the selection is final: overlap (decays linearly to 0 at ``overlap_until``), entropy (grows from 0 during the
    annealing), surplus codes, union, and log ψ of a Gumbel gate. Always: importance and sample similarity.

    Args:
        gate: configuration of the gate; a penalty that its kind does not have weighs 0.
        config: schedule of the penalties.
        schedule: schedule of the gate.
        steps: optimizer steps of the whole training.
    """

    def __init__(self, gate: GateConfig, config: ConvergenceConfig, schedule: GateSchedule, steps: int) -> None:
        self._settings: Mapping[str, Any] = gate.model_dump()
        self._config, self._schedule, self._steps = config, schedule, steps

    def __call__(self, step: int, gate: Gate, forward: ForwardOutput) -> Tensor | float:
        """Return the sum of the weighted penalties at a step."""
        terms = [weight * self._penalty(name, gate, forward) for name, weight in self.weights(step).items()]
        return sum(terms) if terms else 0.0

    def weights(self, step: int) -> dict[str, float]:
        """Return the weight of each penalty at a step; penalties with weight 0 are omitted."""
        settings, config = self._settings, self._config
        weights = {
            "importance": settings.get("importance_weight", 0.0),
            "similarity": float(bool(settings.get("similarity_same") or settings.get("similarity_different"))),
        }
        if not self._schedule.done:
            overlap_decay = max(1.0 - step / (config.overlap_until * self._steps), 0.0)
            weights |= {
                "union": settings.get("union_weight", 0.0),
                "overlap": settings.get("overlap_weight", 0.0) * overlap_decay,
                "entropy": settings.get("entropy_weight", 0.0) * self._schedule.anneal_progress(step),
                "surplus": settings.get("surplus_weight", 0.0) if settings.get("surplus") == "penalty" else 0.0,
                "sparsity": settings.get("sparsity_weight", 0.0),
            }
        return {name: weight for name, weight in weights.items() if weight > 0}

    def _penalty(self, name: str, gate: Gate, forward: ForwardOutput) -> Tensor:
        routing = forward.routing
        match name:
            case "importance":
                return regularizers.importance(routing.weights)
            case "similarity":
                same, different = self._settings["similarity_same"], self._settings["similarity_different"]
                return regularizers.sample_similarity(routing.weights, forward.x, same, different)
            case "sparsity":
                assert isinstance(gate, GumbelSoftmax)
                return gate.log_psi()
            case _:
                return _selector_penalty(name, routing)


def _selector_penalty(name: str, routing: Routing) -> Tensor:
    """Return a penalty that is a function of the selectors."""
    selectors = routing.selectors
    assert selectors is not None
    match name:
        case "union":
            experts = selectors.shape[-1]
            return regularizers.expected_union(selectors, torch.full((experts,), 1 / experts, device=selectors.device))
        case "surplus":
            return regularizers.surplus(selectors)
        case "overlap":
            return regularizers.overlap(selectors)
        case _:
            return regularizers.entropy(selectors)
