"""The gates' selection as plain data, and its cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Reading = Literal["sum", "scaled", "side_by_side"]
"""Input of a task's tower: the weighted sum of its experts, their sum weighted by unit, or all of their outputs."""


@dataclass(frozen=True)
class Selection:
    """The converged selection of experts.

    Attributes:
        num_experts: number of experts n that the gates selected from.
        k: maximum number of experts per task.
        tasks: weights {expert: weight} of each task, ≥ 0 with sum 1 (Gumbel-softmax: at most 1).
        per_example: whether the gate selects per example. The weights are then means over examples, and every expert
            may be needed, including one whose mean weight is 0.
        reading: input of a task's tower; ``sum`` if the gate selects per example.
    """

    num_experts: int
    k: int
    tasks: dict[str, dict[int, float]]
    per_example: bool = False
    reading: Reading = "sum"

    def experts_for(self, tasks: Iterable[str]) -> list[int]:
        """Return the experts that at least one of these tasks selected, ascending."""
        return sorted({expert for task in tasks for expert in self.tasks[task]})

    @property
    def experts_used(self) -> list[int]:
        """Experts that at least one task selected, ascending."""
        return self.experts_for(self.tasks)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable form, with expert numbers as strings."""
        return {
            "num_experts": self.num_experts,
            "k": self.k,
            "per_example": self.per_example,
            "reading": self.reading,
            "tasks": {task: {str(e): w for e, w in weights.items()} for task, weights in self.tasks.items()},
            "experts_used": self.experts_used,
        }

    @classmethod
    def joined(cls, selections: Sequence[Self]) -> Self:
        """Return the selection of the mean of several models, whose experts are numbered one model after the other.

        Args:
            selections: selection of each model, of the same tasks.
        """
        if len(selections) == 1:
            return selections[0]
        starts = list(itertools.accumulate((selection.num_experts for selection in selections), initial=0))
        parts = list(zip(starts, selections, strict=False))
        tasks = {
            task: {start + e: w / len(parts) for start, selection in parts for e, w in selection.tasks[task].items()}
            for task in selections[0].tasks
        }
        readings = {selection.reading for selection in selections}
        per_example = any(selection.per_example for selection in selections)
        reading = readings.pop() if len(readings) == 1 else "sum"
        return cls(starts[-1], sum(selection.k for selection in selections), tasks, per_example, reading)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Create a selection from the result of ``to_json``."""
        tasks = {task: {int(e): float(w) for e, w in weights.items()} for task, weights in data["tasks"].items()}
        reading = data.get("reading", "sum")  # Runs and bundles of earlier versions have no other one.
        if reading not in get_args(Reading):
            raise ValueError(f"reading '{reading}' is unknown: update dselect-ranker")
        return cls(data["num_experts"], data["k"], tasks, data.get("per_example", False), reading)


@dataclass(frozen=True)
class Shape:
    """Layer widths that determine the cost of scoring one row.

    Attributes:
        inputs: width of the experts' input.
        expert_layers: widths of an expert's layers.
        tower_layers: widths of a tower's hidden layers, before its single output.
        reading: input of a tower. If it reads its experts side by side, mixing includes its first layer.
    """

    inputs: int
    expert_layers: Sequence[int]
    tower_layers: Sequence[int]
    reading: Reading = "sum"

    @property
    def expert(self) -> int:
        """FLOPs of one expert for one row."""
        return _dense_flops([self.inputs, *self.expert_layers])

    @property
    def tower(self) -> int:
        """FLOPs of one tower for one row, behind what mixing computes."""
        first = [] if self.reading == "side_by_side" else [self.expert_layers[-1]]
        return _dense_flops([*first, *self.tower_layers, 1])

    def mixing(self, experts: int) -> int:
        """Return the FLOPs with which one task reads this many expert outputs."""
        units = self.tower_layers[0] if self.reading == "side_by_side" else 1
        return 2 * experts * self.expert_layers[-1] * units

    def row(self, experts: int, k: int, tasks: int) -> int:
        """Return the FLOPs of a row for which so many experts run, and each of the tasks reads k of them."""
        return experts * self.expert + tasks * (self.mixing(k) + self.tower)


def _dense_flops(widths: Sequence[int]) -> int:
    """Count one multiplication and one addition per weight, without biases and activations."""
    return sum(2 * a * b for a, b in itertools.pairwise(widths))


@dataclass(frozen=True)
class RoutingCost:
    """Average cost of a row under a per-example gate.

    Attributes:
        gate_flops: FLOPs of the gate for all tasks.
        experts: mean number of experts that run for all tasks together.
        experts_by_task: mean number of experts that run for each task alone.
    """

    gate_flops: int
    experts: float
    experts_by_task: Mapping[str, float]


def flops(selection: Selection, shape: Shape, routing_cost: RoutingCost | None = None) -> dict[str, Any]:
    """Return FLOPs per row: ``dense`` (all experts), ``frozen`` (selected experts), ``per_task`` (each task alone).

    Args:
        selection: the selected experts of each task.
        shape: widths of the layers.
        routing_cost: measured cost of a per-example gate; a static gate costs nothing and runs its selected experts.
    """
    tasks = len(selection.tasks)
    routing_cost = routing_cost or RoutingCost(
        0, len(selection.experts_used), {task: len(weights) for task, weights in selection.tasks.items()}
    )
    mixed = sum(shape.mixing(1) * count for count in routing_cost.experts_by_task.values())
    return {
        "dense": shape.row(selection.num_experts, selection.num_experts, tasks) + routing_cost.gate_flops,
        "frozen": round(routing_cost.experts * shape.expert + mixed + tasks * shape.tower + routing_cost.gate_flops),
        "per_task": {
            task: round(count * (shape.expert + shape.mixing(1)) + shape.tower + routing_cost.gate_flops)
            for task, count in routing_cost.experts_by_task.items()
        },
    }
