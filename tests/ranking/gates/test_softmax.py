"""Softmax gate: weights softmax(Ax + b) over all experts, with an optional hidden layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from ranking.gates import Softmax


def test_softmax_static_weights_match_hand_calculation() -> None:
    gate = Softmax(num_tasks=2, num_experts=3)
    with torch.no_grad():
        gate.bias.copy_(torch.tensor([[0.0, math.log(2.0), math.log(5.0)], [4.0, 4.0, 4.0]]))
    torch.testing.assert_close(gate().detach(), torch.tensor([[0.125, 0.25, 0.625], [1 / 3, 1 / 3, 1 / 3]]))


def test_softmax_per_example_weights_match_hand_calculation() -> None:
    """Ax + b = (x₁ + x₂, 0, −x₂) + (0, ln 2, 0)."""
    gate = Softmax(num_tasks=1, num_experts=3, input_size=2)
    with torch.no_grad():
        gate.weight.copy_(torch.tensor([[[1.0, 1.0], [0.0, 0.0], [0.0, -1.0]]]))
        gate.bias.copy_(torch.tensor([[0.0, math.log(2.0), 0.0]]))
    x = torch.tensor([[0.0, 0.0], [0.0, math.log(4.0)]])  # exp: (1, 2, 1) and (4, 2, ¼)
    expected = torch.tensor([[[0.25, 0.5, 0.25]], [[0.64, 0.32, 0.04]]])
    torch.testing.assert_close(gate(x).detach(), expected)


def test_softmax_hidden_layer_matches_two_linear_layers_per_task() -> None:
    gate, x = Softmax(num_tasks=3, num_experts=5, input_size=6, hidden=4), torch.randn(7, 6)
    with torch.no_grad():
        gate.hidden_bias.normal_()
        gate.bias.normal_()
    weights = gate(x)
    for t in range(3):
        hidden = F.relu(F.linear(x, gate.hidden_weight[t], gate.hidden_bias[t]))
        torch.testing.assert_close(weights[:, t], F.softmax(F.linear(hidden, gate.weight[t], gate.bias[t]), -1))


def test_softmax_initial_weights_are_uniform_or_near_uniform() -> None:
    assert torch.equal(Softmax(2, 4)(), torch.full((2, 4), 0.25))
    gate = Softmax(2, 4, input_size=100)
    assert float(gate.weight.detach().abs().max()) <= 0.1, "the initial bound is 1/√100"
    assert float(gate(torch.randn(50, 100)).detach().max()) < 0.8


def test_softmax_single_expert_has_weight_one() -> None:
    assert torch.equal(Softmax(2, 1)(), torch.ones(2, 1))
    assert torch.equal(Softmax(2, 1, input_size=3)(torch.randn(4, 3)), torch.ones(4, 2, 1))


def test_softmax_is_converged_and_selects_every_expert() -> None:
    gate = Softmax(num_tasks=2, num_experts=5)
    assert not gate.needs_finalize
    assert gate.converged().all()
    assert gate.k == 5
    assert gate.selection().tasks == {str(t): {e: pytest.approx(0.2) for e in range(5)} for t in range(2)}


def test_softmax_extreme_examples_give_finite_weights_and_gradients() -> None:
    gate = Softmax(num_tasks=2, num_experts=3, input_size=2)
    x = torch.tensor([[1e30, -1e30], [0.0, 0.0]], requires_grad=True)
    weights = gate(x)
    assert weights.isfinite().all()
    weights[..., 0].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


# Validation.


def test_softmax_static_gate_with_hidden_layer_is_rejected() -> None:
    with pytest.raises(ValueError, match="hidden = 8: a static gate does not read examples"):
        Softmax(num_tasks=2, num_experts=3, hidden=8)


@pytest.mark.parametrize("hidden", [0, -1])
def test_softmax_hidden_size_below_one_is_rejected(hidden: int) -> None:
    with pytest.raises(ValueError, match=f"hidden = {hidden}"):
        Softmax(num_tasks=2, num_experts=3, input_size=4, hidden=hidden)
