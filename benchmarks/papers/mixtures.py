"""Train small mixtures of experts with the gates, penalties and gate schedule of the product.

Several independent problems are trained at once: each is a group of tasks of one gate. Losses are sums over tasks and
Adam changes each parameter alone, so that problems do not influence each other. They share the order of the rows, and
the draw of the gate's initial parameters depends on the number of problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from pipelines.config.config import ConvergenceConfig
from pipelines.training.gate_schedule import GateSchedule
from pipelines.training.optimizer import learning_rate_factor
from pipelines.training.regularization import Regularization
from ranking.gates import DSelectK, Gate, TopK
from ranking.gates.factory import build_gate
from ranking.model.mmoe import ForwardOutput
from ranking.settings.gate import GateConfig

WARMUP = 0.05
"""Fraction of the steps over which the learning rates rise."""
TOP_K_START = 0.1
"""Lead of the logits of the experts that Top-k starts from; random initial logits are between −.02 and .02."""

Split = Literal["train", "validation", "test"]


class Problems(nn.Module, ABC):
    """Independent problems with the same number of tasks and experts, and the trainable parameters besides the gate.

    Attributes:
        num_tasks: number of tasks of all problems together.
        num_experts: number of experts of each problem.
        rows: number of rows of each split.
        chunk: rows that are evaluated at a time.
        example_width: width of the examples that a per-example gate reads.
    """

    num_tasks: int
    num_experts: int
    rows: Mapping[Split, int]
    chunk: int
    example_width = 0

    @abstractmethod
    def losses(self, weights: Tensor, split: Split, rows: Tensor) -> Tensor:
        """Return the mean loss of each task over some rows of a split [tasks].

        Args:
            weights: gate weights [tasks, experts], or [rows, tasks, experts] of a per-example gate.
            split: split that the rows are of.
            rows: positions of the rows.
        """

    def examples(self, split: Split, rows: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return what a per-example gate reads [rows, example_width]; None if the gates are static."""
        return None

    def similar_tasks(self, k: int) -> Tensor:
        """Return the experts from which each task starts [tasks, k], the same ones for similar tasks.

        Raises:
            NotImplementedError: these problems have no tasks to compare.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Method:
    """A gate and how it is trained.

    Attributes:
        name: name in the results.
        gate: kind and settings of the gate.
        gate_rate: learning rate of the gate.
        rate: learning rate of everything else.
        convergence: schedule of a gate whose selection becomes final.
        annealings: how often the selection becomes final. Before each further time the gate is reopened
            (``Gate.reopen``), so that it can correct choices that it made before the experts were trained.
        similar_tasks: whether similar tasks start with the same experts (DSelect-k and Top-k).
    """

    name: str
    gate: GateConfig
    gate_rate: float = 0.01
    rate: float = 0.01
    convergence: ConvergenceConfig = field(default_factory=ConvergenceConfig)
    annealings: int = 1
    similar_tasks: bool = False


@dataclass(frozen=True)
class Effort:
    """Amount of training: optimizer steps, and rows per step."""

    steps: int
    batch: int


@dataclass(frozen=True)
class Fit:
    """Result of a training.

    Attributes:
        gate: trained gate.
        trajectory: (step, gate weights of the first task [experts]) during the training.
        binary_at: fraction of the steps after which the selection was exact and stayed so; None if it never was.
    """

    gate: Gate
    trajectory: list[tuple[int, list[float]]]
    binary_at: float | None

    @cached_property
    @torch.no_grad()
    def weights(self) -> Tensor:
        """Weights of a static gate [tasks, experts]."""
        return self.gate.route().weights

    def experts(self, task: int) -> set[int]:
        """Return the experts that a task selected with a static gate."""
        return set(self.weights[task].nonzero().flatten().tolist())


def train(problems: Problems, method: Method, effort: Effort, seed: int, record_every: int = 0) -> Fit:
    """Train the gate and the other parameters of all problems.

    The learning rates rise at first. They are constant until a selection would become final, and then decrease to 0:
    that of the gate in each annealing, the other one in the last annealing only. This holds for every kind of gate.

    Args:
        problems: untrained problems; their parameters are trained in place.
        method: gate, learning rates and schedule.
        effort: amount of training.
        seed: seed of the gate's initial parameters and of the order of the rows.
        record_every: steps between two points of the trajectory; 0 for none.
    """
    torch.manual_seed(seed)
    convergence, steps = method.convergence, effort.steps // method.annealings
    total = steps * method.annealings
    device = next(problems.parameters()).device
    gate = build_gate(
        method.gate, problems.num_tasks, problems.num_experts, problems.example_width, 0, convergence.gamma
    ).to(device)
    if method.similar_tasks:
        _start_from(gate, problems.similar_tasks(gate.k))
    optimizer = torch.optim.Adam(
        [{"params": list(gate.parameters())}, {"params": list(problems.parameters())}], fused=True
    )
    rows = _rows(problems.rows["train"], effort.batch)
    trajectory: list[tuple[int, list[float]]] = []
    for annealing in range(method.annealings):
        if annealing:
            gate.reopen(convergence.gamma)
        schedule = GateSchedule(convergence, gate, steps)
        penalties = Regularization(method.gate, convergence, schedule, steps)
        begin = annealing * steps
        final = total - steps + schedule.selected_at_step
        for step in range(1, steps + 1):
            schedule.begin_step(step)
            rates = (
                method.gate_rate * learning_rate_factor(step, steps, WARMUP, schedule.selected_at_step),
                method.rate * learning_rate_factor(begin + step, total, WARMUP, final),
            )
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            batch = next(rows).to(device)
            routing = gate.route(problems.examples("train", batch))
            losses = problems.losses(routing.weights, "train", batch)
            optimizer.zero_grad(set_to_none=True)
            (losses.sum() + penalties(step, gate, ForwardOutput(losses, batch, routing))).backward()
            optimizer.step()
            schedule.end_step(step, routing.weights)
            if record_every and (begin + step) % record_every == 0:
                trajectory.append((begin + step, [round(weight, 4) for weight in routing.weights[0].tolist()]))
    binary_at = None if schedule.binary_at_step is None else (begin + schedule.binary_at_step) / total
    return Fit(gate.eval(), trajectory, binary_at)


@torch.no_grad()
def _start_from(gate: Gate, experts: Tensor) -> None:
    """Let each task start from its experts [tasks, k]; it can still change them."""
    if isinstance(gate, TopK):
        gate.bias.scatter_add_(1, experts, torch.full(experts.shape, TOP_K_START))
    else:
        assert isinstance(gate, DSelectK)
        gate.start_from(experts)


def _rows(count: int, batch: int) -> Iterator[Tensor]:
    """Yield batches of the positions of all rows, in a new order for each pass."""
    order = torch.empty(0, dtype=torch.int64)
    while True:
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(count)])
        yield order[:batch]
        order = order[batch:]


def glorot(inputs: int, units: int, layers: int, generator: torch.Generator) -> Tensor:
    """Draw the weights of dense layers by the Glorot uniform distribution, Keras' default [layers, inputs, units]."""
    limit = (6 / (inputs + units)) ** 0.5
    return limit * (2 * torch.rand(layers, inputs, units, generator=generator) - 1)


@torch.no_grad()
def evaluate(
    problems: Problems, fit: Fit, split: Split, measure: Callable[[Tensor, Split, Tensor], Tensor] | None = None
) -> Tensor:
    """Return the mean of a measure over a split, by default the loss of each task [tasks].

    Args:
        problems: trained problems.
        fit: their gate.
        split: the split.
        measure: function with the arguments of ``Problems.losses``.
    """
    measure = measure or problems.losses
    device = next(problems.parameters()).device
    total: Tensor | float = 0.0
    for chunk in torch.arange(problems.rows[split], device=device).split(problems.chunk):
        weights = fit.gate.route(problems.examples(split, chunk)).weights
        total = total + len(chunk) * measure(weights, split, chunk)
    assert isinstance(total, Tensor)
    return total / problems.rows[split]
