"""The gate interface: a module that computes weights over the experts for each task, or each task and example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ranking.errors import NotConvergedError
from ranking.selection import Selection


class Routing(NamedTuple):
    """Result of one pass through a gate.

    Attributes:
        weights: gate weights [tasks, experts], or [batch, tasks, experts] for a per-example gate.
        selectors: distribution of each selector [..., tasks, k, experts]; None for gates without selectors.
    """

    weights: Tensor
    selectors: Tensor | None = None


class Gate(nn.Module, ABC):
    """Weights ≥ 0 over the experts for each task, with sum 1 unless a gate documents otherwise.

    Attributes:
        num_tasks: number of tasks T, the rows of the gate's output.
        num_experts: number of experts n, the columns of the gate's output.
        k: maximum number of experts per task (and example) once the selection is final.
        input_size: width p of the examples that a per-example gate reads; None for a static gate.
        needs_finalize: whether the selection becomes final only by ``finalize``.
    """

    num_tasks: int
    num_experts: int
    k: int
    input_size: int | None
    needs_finalize = False

    def __init__(self, num_tasks: int, num_experts: int, k: int, input_size: int | None = None) -> None:
        super().__init__()
        if num_tasks < 1 or num_experts < 1:
            raise ValueError(f"num_tasks = {num_tasks} and num_experts = {num_experts}: both must be at least 1")
        if not 1 <= k <= num_experts:
            raise ValueError(f"k = {k}: choose 1 ≤ k ≤ num_experts = {num_experts}")
        if input_size is not None and input_size < 1:
            raise ValueError(f"input_size = {input_size}: must be at least 1, or None for a static gate")
        self.num_tasks, self.num_experts, self.k, self.input_size = num_tasks, num_experts, k, input_size

    @property
    def per_example(self) -> bool:
        """Whether the weights depend on the example."""
        return self.input_size is not None

    @property
    def available(self) -> list[int]:
        """Experts that the gate can select, ascending: all, unless ``restrict`` was called."""
        return list(range(self.num_experts))

    @abstractmethod
    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:
        """Compute the gate weights and the selectors' distributions.

        Args:
            x: examples [batch, input_size]; static gates ignore them.
            outputs: outputs of the experts [experts, batch, width]; only an attentive gate reads them.

        Raises:
            ValueError: the gate is per-example and ``x`` is missing.
        """

    def forward(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Tensor:
        """Return the weights [tasks, experts], or [batch, tasks, experts] for a per-example gate."""
        return self.route(x, outputs).weights

    def anneal(self, gamma: float) -> None:  # Gates without a temperature do nothing.
        """Set γ of DSelect-k, or the temperature of softmax and Gumbel selectors.

        Raises:
            ValueError: γ is not positive; use ``finalize`` to make the selection exact.
        """

    def freeze_alpha(self, frozen: bool) -> None:
        """Freeze or unfreeze the mixing weights of the selectors, which are initially equal."""

    def finalize(self) -> int:
        """Make the selection exact and final.

        Returns:
            Number of static selectors that had not converged and were forced.
        """
        return 0

    def reopen(self, gamma: float) -> None:
        """Make a final selection trainable again, starting from its current state.

        Args:
            gamma: new γ or temperature, see ``anneal``.
        """

    def restrict(self, experts: Sequence[int]) -> None:  # noqa: ARG002
        """Allow only these experts to be selected.

        Raises:
            ValueError: this kind of gate does not support it.
        """
        raise ValueError(f"{type(self).__name__} does not support restricting its experts")

    def serving_gate(self) -> Gate:
        """Return the gate to serve: this gate, or its distilled form if it needs the outputs of all experts."""
        return self

    @abstractmethod
    def converged(self) -> Tensor:
        """Return whether each task's selection is exact: at most k experts have a nonzero weight [tasks], bool."""

    def selection(self, tasks: Sequence[str] | None = None, x: Tensor | None = None) -> Selection:
        """Return the selection as plain data.

        Args:
            tasks: names of the tasks; default "0", "1", ….
            x: examples [batch, input_size] over which the weights of a per-example gate are averaged.

        Raises:
            NotConvergedError: a task's selection is not final.
            ValueError: the gate is per-example and ``x`` is missing.
        """
        names = self._names(tasks)
        self.require_converged(names)
        training = self.training
        try:
            with torch.no_grad():
                weights = self.eval()(x).double()
        finally:
            self.train(training)
        if self.per_example:
            return mean_selection(weights.mean(0), names, self.k, self.available)
        selected = {
            name: {int(e): float(row[e]) for e in row.nonzero().flatten()}
            for name, row in zip(names, weights, strict=True)
        }
        return Selection(self.num_experts, self.k, selected)

    def require_converged(self, names: Sequence[str]) -> None:
        """Check that every task's selection is final.

        Raises:
            NotConvergedError: a task's selection is not final; the message names the tasks.
        """
        open_tasks = [f"'{name}'" for name, final in zip(names, self.converged().tolist(), strict=True) if not final]
        if open_tasks:
            tasks = ", ".join(open_tasks)
            raise NotConvergedError(f"the gate has not converged for task {tasks}; train for more steps")

    def _names(self, tasks: Sequence[str] | None) -> list[str]:
        """Return the names of the tasks, by default "0", "1", ….

        Raises:
            ValueError: the number of names differs from the number of tasks.
        """
        if tasks is not None and len(tasks) != self.num_tasks:
            raise ValueError(f"{len(tasks)} names for {self.num_tasks} tasks: pass one name per task")
        return [str(t) for t in range(self.num_tasks)] if tasks is None else list(tasks)

    def _examples(self, x: Tensor | None, like: Tensor) -> Tensor:
        if x is None:
            raise ValueError(f"a per-example gate needs examples: pass x [batch, {self.input_size}]")
        if x.dim() != 2 or x.shape[1] != self.input_size:
            raise ValueError(f"x has shape {list(x.shape)}: pass examples [batch, {self.input_size}]")
        return x.to(like.dtype)


def above_zero(gamma: float) -> float:
    """Return γ after checking that it is positive.

    Raises:
        ValueError: γ is not positive.
    """
    if not gamma > 0:
        raise ValueError(f"gamma = {gamma}: must be positive")
    return gamma


def mean_selection(weights: Tensor, tasks: Sequence[str], k: int, experts: Sequence[int] | None = None) -> Selection:
    """Return the selection of a per-example gate.

    Args:
        weights: mean weights over examples [tasks, experts].
        tasks: names of the tasks.
        k: maximum number of experts per task and example.
        experts: experts that the gate can select, each of which an example may need; default all.
    """
    available = range(weights.shape[-1]) if experts is None else experts
    selected = {name: {e: float(row[e]) for e in available} for name, row in zip(tasks, weights.double(), strict=True)}
    return Selection(weights.shape[-1], k, selected, per_example=True)
