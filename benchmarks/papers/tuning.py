"""Choose the settings of each method on problems that the comparison does not use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.papers.mixtures import Effort, Method, Problems, evaluate, train
from pipelines.console import print_status

TUNING_SEED = 0
"""First seed of the problems on which methods are tuned."""
FRESH_SEED = 10_000
"""First seed of the problems on which tuned methods are compared."""


@dataclass(frozen=True)
class Grid:
    """Settings to try, the same for every method.

    Attributes:
        gate_rates: learning rates of the gate.
        rates: other learning rates.
        annealings: see ``Method.annealings``.
    """

    gate_rates: Sequence[float]
    rates: Sequence[float]
    annealings: Sequence[int] = (1,)

    def smallest(self) -> Grid:
        """Return the grid with one trial, for the quick form of an experiment."""
        return Grid(self.gate_rates[:1], self.rates[:1], self.annealings[:1])


def tune(
    method: Method, grid: Grid, make_problems: Callable[[range], Problems], problems: int, effort: Effort
) -> tuple[Method, list[dict[str, Any]]]:
    """Return the method with the settings of the lowest mean validation loss, and all trials.

    Losses are compared with six digits, and the first of equal settings is taken.

    Args:
        method: method to tune.
        grid: settings to try.
        make_problems: creates untrained problems for a range of seeds.
        problems: number of problems.
        effort: amount of training.
    """
    tried: list[Method] = []
    trials: list[dict[str, Any]] = []
    for gate_rate, rate, annealings in itertools.product(grid.gate_rates, grid.rates, grid.annealings):
        tried.append(replace(method, gate_rate=gate_rate, rate=rate, annealings=annealings))
        untrained = make_problems(range(TUNING_SEED, TUNING_SEED + problems))
        fit = train(untrained, tried[-1], effort, TUNING_SEED)
        loss = round(float(evaluate(untrained, fit, "validation").mean()), 6)
        settings = {"gate_rate": gate_rate, "rate": rate, "annealings": annealings}
        print_status(f"{method.name}: {settings}: validation loss {loss}")
        trials.append({**settings, "validation_loss": loss})
    losses = [trial["validation_loss"] for trial in trials]
    return tried[losses.index(min(losses))], trials
