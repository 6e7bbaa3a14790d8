"""Losses over all tasks at once; a masked label weighs nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ranking.losses import scores, task_losses
from ranking.schema import Task

TASKS = [
    Task(name="click", kind="binary"),
    Task(name="watch", kind="regression", transform="log1p"),
    Task(name="like", kind="binary"),
]
NAN = torch.nan


def test_a_binary_task_has_cross_entropy_and_a_regression_squared_error() -> None:
    outputs = torch.randn(6, 3)
    labels = torch.stack([torch.randint(2, (6,)), torch.randn(6) * 3, torch.randint(2, (6,))], 1).float()
    expected = [
        F.binary_cross_entropy_with_logits(outputs[:, 0], labels[:, 0]),
        F.mse_loss(outputs[:, 1], labels[:, 1]),
        F.binary_cross_entropy_with_logits(outputs[:, 2], labels[:, 2]),
    ]
    torch.testing.assert_close(task_losses(outputs, labels, TASKS), torch.stack(expected))


def test_the_mean_is_over_unmasked_rows() -> None:
    outputs = torch.randn(4, 3)
    labels = torch.tensor([[1.0, NAN, 0.0], [NAN, 2.0, 1.0], [0.0, 5.0, NAN], [NAN, -1.0, NAN]])
    expected = [
        F.binary_cross_entropy_with_logits(outputs[[0, 2], 0], torch.tensor([1.0, 0.0])),
        F.mse_loss(outputs[1:, 1], torch.tensor([2.0, 5.0, -1.0])),
        F.binary_cross_entropy_with_logits(outputs[:2, 2], torch.tensor([0.0, 1.0])),
    ]
    torch.testing.assert_close(task_losses(outputs, labels, TASKS), torch.stack(expected))


def test_a_masked_label_gives_no_gradient() -> None:
    outputs = torch.randn(3, 3, requires_grad=True)
    labels = torch.tensor([[1.0, NAN, 0.0], [NAN, 2.0, NAN], [0.0, NAN, NAN]])
    task_losses(outputs, labels, TASKS).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()
    assert torch.equal(outputs.grad != 0, ~labels.isnan())


def test_a_task_without_any_label_has_loss_0_and_no_gradient() -> None:
    outputs = torch.randn(3, 3, requires_grad=True)
    losses = task_losses(outputs, torch.full((3, 3), NAN), TASKS)
    assert losses.tolist() == [0.0, 0.0, 0.0]
    losses.sum().backward()
    assert outputs.grad is not None
    assert torch.equal(outputs.grad, torch.zeros(3, 3))


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_large_outputs_give_finite_losses(size: float) -> None:
    outputs = torch.tensor([[size, size, -size]], requires_grad=True)
    losses = task_losses(outputs, torch.tensor([[0.0, NAN, 1.0]]), TASKS)
    assert losses.tolist() == [size, 0.0, size]
    losses.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_scores_are_probabilities_and_numbers() -> None:
    outputs = torch.tensor([[0.0, -3.0, 100.0], [-100.0, 7.5, 1.0]])
    expected = torch.tensor([[0.5, -3.0, 1.0], [0.0, 7.5, 0.7310586]])
    torch.testing.assert_close(scores(outputs, TASKS), expected)
