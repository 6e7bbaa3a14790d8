"""What the gates chose, as plain data, and what it costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Selection:
    """The converged choice.

    Attributes:
        num_experts: n, the experts that could be chosen from.
        k: the most experts that one task may choose.
        tasks: task → {expert: weight}; weights of a task are ≥ 0 and sum to 1 (Gumbel-softmax: to at most 1).
        per_example: the gate decides for each example; the weights are then means over examples, and every expert may
            be needed, including one whose mean weight is 0.
    """

    num_experts: int
    k: int
    tasks: dict[str, dict[int, float]]
    per_example: bool = False

    def experts_for(self, tasks: Iterable[str]) -> list[int]:
        """Experts that at least one of these tasks chose, ascending: what must run to score them."""
        return sorted({expert for task in tasks for expert in self.tasks[task]})

    @property
    def experts_used(self) -> list[int]:
        """Experts that at least one task chose, ascending."""
        return self.experts_for(self.tasks)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form; expert numbers become strings."""
        return {
            "num_experts": self.num_experts,
            "k": self.k,
            "per_example": self.per_example,
            "tasks": {task: {str(e): w for e, w in chosen.items()} for task, chosen in self.tasks.items()},
            "experts_used": self.experts_used,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Reads what ``to_json`` wrote."""
        tasks = {task: {int(e): float(w) for e, w in chosen.items()} for task, chosen in data["tasks"].items()}
        return cls(data["num_experts"], data["k"], tasks, data.get("per_example", False))


@dataclass(frozen=True)
class Shape:
    """Layer widths that decide the cost of scoring one row.

    Attributes:
        inputs: width of the experts' input.
        expert_layers: widths of an expert's layers.
        tower_layers: widths of a tower's hidden layers; its output is one number.
    """

    inputs: int
    expert_layers: Sequence[int]
    tower_layers: Sequence[int]

    @property
    def expert(self) -> int:
        """FLOPs of one expert for one row."""
        return _dense_flops([self.inputs, *self.expert_layers])

    @property
    def tower(self) -> int:
        """FLOPs of one tower for one row."""
        return _dense_flops([self.expert_layers[-1], *self.tower_layers, 1])

    def mixing(self, experts: int) -> int:
        """FLOPs of one task's weighted sum of so many experts' outputs."""
        return 2 * experts * self.expert_layers[-1]


def _dense_flops(widths: Sequence[int]) -> int:
    """A multiplication and an addition for each weight; biases and activations are left out."""
    return sum(2 * a * b for a, b in itertools.pairwise(widths))


@dataclass(frozen=True)
class RoutingCost:
    """What a row costs under a per-example gate, on average over the rows that were looked at.

    Attributes:
        gate_flops: of the gate itself, for all tasks.
        experts: experts that run for all tasks together.
        experts_by_task: experts that run for each task alone.
    """

    gate_flops: int
    experts: float
    experts_by_task: Mapping[str, float]


def flops(selection: Selection, shape: Shape, load: RoutingCost | None = None) -> dict[str, Any]:
    """FLOPs a row of gate, experts, mixing and towers: ``dense`` (all), ``frozen`` (chosen), ``per_task`` (each alone).

    Args:
        selection: who chose what.
        shape: of the layers.
        load: what the rows of a per-example gate need; a static gate costs nothing and runs what it chose.
    """
    tasks = len(selection.tasks)
    load = load or RoutingCost(
        0, len(selection.experts_used), {task: len(chosen) for task, chosen in selection.tasks.items()}
    )
    everything = selection.num_experts * shape.expert + tasks * (shape.mixing(selection.num_experts) + shape.tower)
    mixed = sum(shape.mixing(1) * count for count in load.experts_by_task.values())
    return {
        "dense": everything + load.gate_flops,
        "frozen": round(load.experts * shape.expert + mixed + tasks * shape.tower + load.gate_flops),
        "per_task": {
            task: round(count * (shape.expert + shape.mixing(1)) + shape.tower + load.gate_flops)
            for task, count in load.experts_by_task.items()
        },
    }
