"""Mean gradients on lines: their integral is the difference of the outputs, whatever the weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ranking.frozen import line_gradients
from ranking.frozen.line_gradients import LineGradients
from ranking.frozen.weights import FrozenModel
from ranking.selection import Selection

INPUTS = 5
TASKS = ["a", "b"]
SELECTION = Selection(3, 2, {"a": {0: 0.7, 2: 0.3}, "b": {2: 1.0}})


def graph(seed: int, scale: float) -> LineGradients:
    """A graph of two experts and two towers with random weights."""
    random = np.random.default_rng(seed)
    weights = {}

    def add(prefix: str, *widths: int) -> None:
        for i, (width, following) in enumerate(itertools.pairwise(widths)):
            weights[f"{prefix}.{i}.weight"] = random.normal(0, scale, (width, following)).astype(np.float32)
            weights[f"{prefix}.{i}.bias"] = random.normal(0, scale, following).astype(np.float32)

    for expert in (0, 2):
        add(f"expert.{expert}", INPUTS, 8, 6)
    for task in TASKS:
        add(f"tower.{task}", 6, 4, 1)
    return LineGradients(FrozenModel(SELECTION, weights))


@given(st.integers(0, 1000), st.floats(0.1, 3.0), st.floats(0.1, 10.0))
@example(seed=8, scale=3.0, length=1.0)  # the logit changes so fast that 8 halvings are too few
def test_mean_gradients_add_up_to_the_difference_of_the_outputs(seed: int, scale: float, length: float) -> None:
    random, model = np.random.default_rng(seed), graph(seed, scale)
    start, stop = random.normal(size=(1, INPUTS)), random.normal(0, length, (7, INPUTS))
    differences = model.outputs(stop, TASKS) - model.outputs(start, TASKS)
    limits = 1e-4 * np.maximum(np.abs(differences), 0.1)
    gradients, count = model.mean_gradients(start, stop, TASKS, limits)
    assert gradients.shape == (2, 7, INPUTS)
    assert count >= 7 * line_gradients.SEGMENTS
    sums = (gradients * (stop - start)).sum(2).T
    # docs/http.md promises an error of at most 1 % of the difference, or of 0.1 if it is smaller.
    assert (np.abs(sums - differences) <= 100 * limits).all()


def test_mean_gradient_of_a_line_of_length_zero_is_the_gradient() -> None:
    model, x = graph(1, 1.0), np.full((1, INPUTS), 0.3)
    gradients, _ = model.mean_gradients(x, x, TASKS, np.ones((1, 2)))
    step = 1e-6
    for i in range(INPUTS):
        other = x.copy()
        other[0, i] += step
        numeric = (model.outputs(other, TASKS) - model.outputs(x, TASKS))[0] / step
        np.testing.assert_allclose(gradients[:, 0, i], numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tasks", [["a"], ["b"], ["b", "a"]])
def test_mean_gradients_of_a_task_do_not_depend_on_other_tasks(tasks: list[str]) -> None:
    model, random = graph(2, 0.5), np.random.default_rng(2)
    start, stop = random.normal(size=(1, INPUTS)), random.normal(size=(20, INPUTS))
    limits = np.full((20, 2), 1e-6)
    both, _ = model.mean_gradients(start, stop, TASKS, limits)
    some, _ = model.mean_gradients(start, stop, tasks, limits[:, : len(tasks)])
    for position, task in enumerate(tasks):
        np.testing.assert_allclose(some[position], both[TASKS.index(task)], atol=1e-3)
