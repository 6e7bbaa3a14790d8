"""What the gates chose, as plain data, and what it costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Selection:
    """The converged choice.

    Attributes:
        num_experts: n, the experts that could be chosen from.
        k: the most experts that one task may choose.
        tasks: task → {expert: weight}; weights of a task are ≥ 0 and sum to 1.
    """

    num_experts: int
    k: int
    tasks: dict[str, dict[int, float]]

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
            "tasks": {task: {str(e): w for e, w in chosen.items()} for task, chosen in self.tasks.items()},
            "experts_used": self.experts_used,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Reads what ``to_json`` wrote."""
        tasks = {task: {int(e): float(w) for e, w in chosen.items()} for task, chosen in data["tasks"].items()}
        return cls(data["num_experts"], data["k"], tasks)


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


def flops(selection: Selection, shape: Shape) -> dict[str, Any]:
    """FLOPs a row of experts, mixing and towers: ``dense`` (all), ``frozen`` (chosen), ``per_task`` (each alone)."""
    tasks = len(selection.tasks)
    used = shape.expert * len(selection.experts_used)
    mixed = sum(shape.mixing(len(chosen)) for chosen in selection.tasks.values())
    return {
        "dense": selection.num_experts * shape.expert + tasks * (shape.mixing(selection.num_experts) + shape.tower),
        "frozen": used + mixed + tasks * shape.tower,
        "per_task": {
            task: len(chosen) * shape.expert + shape.mixing(len(chosen)) + shape.tower
            for task, chosen in selection.tasks.items()
        },
    }
