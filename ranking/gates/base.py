"""What every gate is: a module that gives each task, or each task of each example, weights over the experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ranking.errors import NotConvergedError
from ranking.selection import Selection


class Routing(NamedTuple):
    """One pass through a gate.

    Attributes:
        weights: [tasks, experts], or [batch, tasks, experts] if the gate decides per example.
        selectors: [..., tasks, k, experts], each selector's distribution; None for gates without selectors.
    """

    weights: Tensor
    selectors: Tensor | None = None


class Gate(nn.Module, ABC):
    """Task → weights ≥ 0 over the experts; each task's sum to 1 unless the gate says otherwise.

    Attributes:
        num_tasks: T, rows of the gate's output.
        num_experts: n, columns of the gate's output.
        k: the most experts that one task (per example: one task of one example) uses once the choice is final.
        input_size: width p of the examples that a per-example gate reads; None if the gate is static.
        concludes: whether training brings the choice to a final moment, see ``conclude``.
    """

    num_tasks: int
    num_experts: int
    k: int
    input_size: int | None
    concludes = False

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
        """The experts that there are to choose from, ascending: all, unless ``restrict`` left only some."""
        return list(range(self.num_experts))

    @abstractmethod
    def route(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Routing:
        """Weights and what they were made of.

        Args:
            x: examples [batch, input_size]; static gates ignore them.
            outputs: the experts' outputs [experts, batch, width]; only an attentive gate reads them.

        Raises:
            ValueError: a per-example gate was given no examples.
        """

    def forward(self, x: Tensor | None = None, outputs: Tensor | None = None) -> Tensor:
        """Weights [tasks, experts], or [batch, tasks, experts] if the gate decides per example."""
        return self.route(x, outputs).weights

    def anneal(self, gamma: float) -> None:  # a gate without a temperature has nothing to do
        """Sets how soft a choice may still be: γ of DSelect-k, the temperature of softmax and Gumbel selectors.

        Raises:
            ValueError: γ is not above 0; ``conclude`` is what makes a choice exact.
        """

    def freeze_alpha(self, held: bool) -> None:
        """Keeps the weights of a task's chosen experts as they are (equal, at the start), or lets them learn."""

    def finalize(self) -> int:
        """Makes the choice final and exact.

        Returns:
            Selectors (static) whose choice was still open, so that it had to be forced.
        """
        return 0

    def reopen(self, gamma: float) -> None:
        """Lets a final choice change again, starting from what it is; ``conclude`` makes it final once more.

        Args:
            gamma: how soft the choice is from now on, see ``anneal``.
        """

    def restrict(self, experts: Sequence[int]) -> None:  # noqa: ARG002
        """Leaves only these experts to choose from.

        Raises:
            ValueError: this kind of gate cannot.
        """
        raise ValueError(f"{type(self).__name__} cannot be restricted to some experts")

    def serving_gate(self) -> Gate:
        """The gate that serves: this one, unless it needs all experts' outputs to choose and is distilled."""
        return self

    @abstractmethod
    def converged(self) -> Tensor:
        """Whether each task's choice of experts is exact: at most k, all others weigh 0 [tasks], bool."""

    def selection(self, tasks: Sequence[str] | None = None, x: Tensor | None = None) -> Selection:
        """The choice as plain data.

        Args:
            tasks: their names; default "0", "1", ….
            x: examples [batch, input_size] over which a per-example gate's weights are averaged.

        Raises:
            NotConvergedError: some task's choice is not final.
            ValueError: a per-example gate was given no examples.
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
        chosen = {
            name: {int(e): float(row[e]) for e in row.nonzero().flatten()}
            for name, row in zip(names, weights, strict=True)
        }
        return Selection(self.num_experts, self.k, chosen)

    def require_converged(self, names: Sequence[str]) -> None:
        """Does nothing if every task's choice is final.

        Raises:
            NotConvergedError: names the tasks whose choice is not.
        """
        far = [f"'{name}'" for name, final in zip(names, self.converged().tolist(), strict=True) if not final]
        if far:
            raise NotConvergedError(f"the gate has not converged for task {', '.join(far)}; train for more steps")

    def _names(self, tasks: Sequence[str] | None) -> list[str]:
        """The tasks' names, "0", "1", … unless given.

        Raises:
            ValueError: not one name a task.
        """
        if tasks is not None and len(tasks) != self.num_tasks:
            raise ValueError(f"{len(tasks)} names for {self.num_tasks} tasks: give one for each")
        return [str(t) for t in range(self.num_tasks)] if tasks is None else list(tasks)

    def _examples(self, x: Tensor | None, like: Tensor) -> Tensor:
        if x is None:
            raise ValueError(f"a per-example gate chooses by example: give it examples x [batch, {self.input_size}]")
        if x.dim() != 2 or x.shape[1] != self.input_size:
            raise ValueError(f"x is {list(x.shape)}: this gate reads examples [batch, {self.input_size}]")
        return x.to(like.dtype)


def above_zero(gamma: float) -> float:
    """γ itself.

    Raises:
        ValueError: it is not above 0.
    """
    if not gamma > 0:
        raise ValueError(f"gamma = {gamma}: must be above 0")
    return gamma


def mean_selection(weights: Tensor, tasks: Sequence[str], k: int, experts: Sequence[int] | None = None) -> Selection:
    """The selection of a per-example gate.

    Args:
        weights: means over examples [tasks, experts].
        tasks: their names.
        k: the most experts that one task of one example uses.
        experts: those that there are to choose from, each of which some example may need; default all.
    """
    there = range(weights.shape[-1]) if experts is None else experts
    chosen = {name: {e: float(row[e]) for e in there} for name, row in zip(tasks, weights.double(), strict=True)}
    return Selection(weights.shape[-1], k, chosen, per_example=True)
