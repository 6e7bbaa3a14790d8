"""Task losses with masked labels and sample weights, and their weighted sum."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from ranking.model.losses import FixedWeighting, UncertaintyWeighting, label_weights, task_losses
from ranking.schema import Task

TASKS = [
    Task(name="click", kind="binary"),
    Task(name="watch", kind="regression", transform="log1p"),
    Task(name="like", kind="binary"),
]
NAN = torch.nan


def test_task_losses_are_cross_entropy_for_binary_and_squared_error_for_regression() -> None:
    outputs = torch.randn(6, 3)
    labels = torch.stack([torch.randint(2, (6,)), torch.randn(6) * 3, torch.randint(2, (6,))], 1).float()
    expected = [
        F.binary_cross_entropy_with_logits(outputs[:, 0], labels[:, 0]),
        F.mse_loss(outputs[:, 1], labels[:, 1]),
        F.binary_cross_entropy_with_logits(outputs[:, 2], labels[:, 2]),
    ]
    torch.testing.assert_close(task_losses(outputs, labels, TASKS), torch.stack(expected))


def test_task_losses_average_over_unmasked_rows() -> None:
    outputs = torch.randn(4, 3)
    labels = torch.tensor([[1.0, NAN, 0.0], [NAN, 2.0, 1.0], [0.0, 5.0, NAN], [NAN, -1.0, NAN]])
    expected = [
        F.binary_cross_entropy_with_logits(outputs[[0, 2], 0], torch.tensor([1.0, 0.0])),
        F.mse_loss(outputs[1:, 1], torch.tensor([2.0, 5.0, -1.0])),
        F.binary_cross_entropy_with_logits(outputs[:2, 2], torch.tensor([0.0, 1.0])),
    ]
    torch.testing.assert_close(task_losses(outputs, labels, TASKS), torch.stack(expected))


def test_task_losses_masked_labels_have_zero_gradient() -> None:
    outputs = torch.randn(3, 3, requires_grad=True)
    labels = torch.tensor([[1.0, NAN, 0.0], [NAN, 2.0, NAN], [0.0, NAN, NAN]])
    task_losses(outputs, labels, TASKS).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()
    assert torch.equal(outputs.grad != 0, ~labels.isnan())


def test_task_losses_of_task_without_labels_are_zero_with_zero_gradient() -> None:
    outputs = torch.randn(3, 3, requires_grad=True)
    losses = task_losses(outputs, torch.full((3, 3), NAN), TASKS)
    assert losses.tolist() == [0.0, 0.0, 0.0]
    losses.sum().backward()
    assert outputs.grad is not None
    assert torch.equal(outputs.grad, torch.zeros(3, 3))


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_task_losses_of_large_outputs_are_finite(size: float) -> None:
    outputs = torch.tensor([[size, size, -size]], requires_grad=True)
    losses = task_losses(outputs, torch.tensor([[0.0, NAN, 1.0]]), TASKS)
    assert losses.tolist() == [size, 0.0, size]
    losses.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


# Sample weights.


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 1000))
def test_task_losses_with_integer_weights_equal_those_of_repeated_rows(weights: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = len(weights)
    outputs = torch.randn(rows, 3, generator=random, dtype=torch.float64)
    labels = torch.randint(2, (rows, 3), generator=random).double()
    labels[torch.rand(rows, 3, generator=random) < 0.3] = NAN
    times = torch.tensor(weights)
    repeated = task_losses(outputs.repeat_interleave(times, 0), labels.repeat_interleave(times, 0), TASKS)
    torch.testing.assert_close(task_losses(outputs, labels, TASKS, times.double()), repeated)
    assert torch.equal(label_weights(labels, times.double()), (~labels.isnan()).double().T @ times.double())


def test_task_losses_with_zero_weights_are_zero_with_zero_gradient() -> None:
    outputs = torch.randn(3, 3, requires_grad=True)
    losses = task_losses(outputs, torch.ones(3, 3), TASKS, torch.zeros(3))
    assert losses.tolist() == [0.0, 0.0, 0.0]
    losses.sum().backward()
    assert outputs.grad is not None
    assert torch.equal(outputs.grad, torch.zeros(3, 3))


# Weighting of tasks.


WEIGHTED = [TASKS[0], TASKS[1].model_copy(update={"weight": 2.0}), TASKS[2].model_copy(update={"weight": 5.0})]
LOSSES = torch.tensor([0.5, 3.0, 0.1])


def test_fixed_weighting_uses_task_weights_without_parameters() -> None:
    assert float(FixedWeighting(WEIGHTED)(LOSSES)) == pytest.approx(0.5 + 2 * 3.0 + 5 * 0.1)
    assert not list(FixedWeighting(WEIGHTED).parameters())


def test_uncertainty_weighting_uses_learned_variances() -> None:
    weighting = UncertaintyWeighting(WEIGHTED)
    with torch.no_grad():
        weighting.log_variances.copy_(torch.tensor([0.0, 1.0, -2.0]))
    expected = 0.5 + 2 * (0.5 * math.exp(-1.0) * 3.0 + 0.5) + 5 * (math.exp(2.0) * 0.1 - 1.0)
    assert weighting(LOSSES).item() == pytest.approx(expected, rel=1e-6)


def test_uncertainty_weighting_trained_log_variances_reach_optimum() -> None:
    weighting = UncertaintyWeighting(WEIGHTED)
    optimizer = torch.optim.Adam(weighting.parameters(), lr=0.05)
    for _ in range(800):
        optimizer.zero_grad()
        weighting(LOSSES).backward()
        optimizer.step()
    # d/ds (c·exp(−s)·L + s/2) = 0 at exp(s) = 2·c·L for any task weight
    expected = torch.tensor([2 * 0.5, 2 * 0.5 * 3.0, 2 * 0.1])
    torch.testing.assert_close(weighting.log_variances.exp().detach(), expected, rtol=1e-3, atol=0)
