"""Choose the learning rates of each method on problems that the comparison does not use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.papers.mixtures import Effort, Method, Problems, evaluate, train
from pipelines.console import print_status

TUNING_SEED = 0
"""First seed of the problems on which methods are tuned."""
FRESH_SEED = 1_000
"""First seed of the problems on which tuned methods are compared."""


def tune(
    method: Method,
    gate_rates: Sequence[float],
    rates: Sequence[float],
    make_problems: Callable[[range], Problems],
    problems: int,
    effort: Effort,
) -> tuple[Method, list[dict[str, Any]]]:
    """Return the method with the learning rates of the lowest mean validation loss, and all trials.

    Args:
        method: method to tune.
        gate_rates: learning rates of the gate to try.
        rates: other learning rates to try.
        make_problems: creates untrained problems for a range of seeds.
        problems: number of problems.
        effort: amount of training.
    """
    trials = []
    for gate_rate, rate in itertools.product(gate_rates, rates):
        trial = replace(method, gate_rate=gate_rate, rate=rate)
        untrained = make_problems(range(TUNING_SEED, TUNING_SEED + problems))
        loss = float(evaluate(untrained, train(untrained, trial, effort, TUNING_SEED), "validation").mean())
        print_status(f"{method.name}: gate rate {gate_rate:g}, rate {rate:g}: validation loss {loss:.5f}")
        trials.append({"gate_rate": gate_rate, "rate": rate, "validation_loss": loss})
    best = min(trials, key=lambda trial: trial["validation_loss"])
    return replace(method, gate_rate=best["gate_rate"], rate=best["rate"]), trials
