"""The penalties that a gate's settings ask for, each with its schedule; added to the loss once a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.gate_schedule import GateSchedule
from ranking.gates import Gate, GumbelSoftmax, Routing, regularizers
from ranking.gates.config import GateConfig
from ranking.model.mmoe import ForwardOutput


class Regularization:
    """Weighted penalties of one training.

    Until the choice is final: overlap (fading linearly to 0 at ``overlap_until``), entropy (rising from 0 over the
    ramp), surplus codes, union, and Gumbel's log ψ. Throughout: importance and sample similarity.

    Args:
        gate: settings of the gate; a penalty that its kind does not have weighs nothing.
        config: when penalties act.
        convergence: where the training stands.
        steps: optimiser steps of the whole training.
    """

    def __init__(self, gate: GateConfig, config: ConvergenceConfig, convergence: GateSchedule, steps: int) -> None:
        self._weights: Mapping[str, float] = gate.model_dump()
        self._config, self._convergence, self._steps = config, convergence, steps

    def __call__(self, step: int, gate: Gate, done: ForwardOutput) -> Tensor | float:
        """What is added to the data loss at this step."""
        terms = [weight * self._term(name, gate, done) for name, weight in self.weights(step).items()]
        return sum(terms) if terms else 0.0

    def weights(self, step: int) -> dict[str, float]:
        """Penalty → its weight at this step, those above 0."""
        given, config = self._weights, self._config
        weights = {
            "importance": given.get("importance_weight", 0.0),
            "similarity": float(bool(given.get("similarity_same") or given.get("similarity_different"))),
        }
        if not self._convergence.done:
            overlap_left = max(1.0 - step / (config.overlap_until * self._steps), 0.0)
            weights |= {
                "union": given.get("union_weight", 0.0),
                "overlap": given.get("overlap_weight", 0.0) * overlap_left,
                "entropy": given.get("entropy_weight", 0.0) * self._convergence.ramp(step),
                "surplus": given.get("surplus_weight", 0.0) if given.get("surplus") == "penalty" else 0.0,
                "sparsity": given.get("sparsity_weight", 0.0),
            }
        return {name: weight for name, weight in weights.items() if weight > 0}

    def _term(self, name: str, gate: Gate, done: ForwardOutput) -> Tensor:
        routing = done.routing
        match name:
            case "importance":
                return regularizers.importance(routing.weights)
            case "similarity":
                same, different = self._weights["similarity_same"], self._weights["similarity_different"]
                return regularizers.sample_similarity(routing.weights, done.x, same, different)
            case "sparsity":
                assert isinstance(gate, GumbelSoftmax)
                return gate.log_psi()
            case _:
                return _of_selectors(name, routing)


def _of_selectors(name: str, routing: Routing) -> Tensor:
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
