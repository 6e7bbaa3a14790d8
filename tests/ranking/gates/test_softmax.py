"""The softmax gate: every expert, weighed by softmax(Ax + b)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from ranking.gates import Softmax


def test_static_by_hand() -> None:
    gate = Softmax(num_tasks=2, num_experts=3)
    with torch.no_grad():
        gate.bias.copy_(torch.tensor([[0.0, math.log(2.0), math.log(5.0)], [4.0, 4.0, 4.0]]))
    torch.testing.assert_close(gate().detach(), torch.tensor([[0.125, 0.25, 0.625], [1 / 3, 1 / 3, 1 / 3]]))


def test_of_an_example_by_hand() -> None:
    """Ax + b = (x₁ + x₂, 0, −x₂) + (0, ln 2, 0)."""
    gate = Softmax(num_tasks=1, num_experts=3, input_size=2)
    with torch.no_grad():
        gate.weight.copy_(torch.tensor([[[1.0, 1.0], [0.0, 0.0], [0.0, -1.0]]]))
        gate.bias.copy_(torch.tensor([[0.0, math.log(2.0), 0.0]]))
    x = torch.tensor([[0.0, 0.0], [0.0, math.log(4.0)]])  # exp: (1, 2, 1) and (4, 2, ¼)
    expected = torch.tensor([[[0.25, 0.5, 0.25]], [[0.64, 0.32, 0.04]]])
    torch.testing.assert_close(gate(x).detach(), expected)


def test_with_a_hidden_layer_it_is_two_layers_for_each_task() -> None:
    gate, x = Softmax(num_tasks=3, num_experts=5, input_size=6, hidden=4), torch.randn(7, 6)
    with torch.no_grad():
        gate.hidden_bias.normal_()
        gate.bias.normal_()
    found = gate(x)
    for t in range(3):
        hidden = F.relu(F.linear(x, gate.hidden_weight[t], gate.hidden_bias[t]))
        torch.testing.assert_close(found[:, t], F.softmax(F.linear(hidden, gate.weight[t], gate.bias[t]), -1))


def test_it_starts_without_a_preference() -> None:
    assert torch.equal(Softmax(2, 4)(), torch.full((2, 4), 0.25))
    gate = Softmax(2, 4, input_size=100)
    assert float(gate.weight.detach().abs().max()) <= 0.1, "1/√100"
    assert float(gate(torch.randn(50, 100)).detach().max()) < 0.8


def test_one_expert_has_all_the_weight() -> None:
    assert torch.equal(Softmax(2, 1)(), torch.ones(2, 1))
    assert torch.equal(Softmax(2, 1, input_size=3)(torch.randn(4, 3)), torch.ones(4, 2, 1))


def test_every_expert_is_used_and_that_is_final() -> None:
    gate = Softmax(num_tasks=2, num_experts=5)
    assert not gate.needs_finalize
    assert gate.converged().all()
    assert gate.k == 5
    assert gate.selection().tasks == {str(t): {e: pytest.approx(0.2) for e in range(5)} for t in range(2)}


def test_far_out_examples_do_not_break_it() -> None:
    gate = Softmax(num_tasks=2, num_experts=3, input_size=2)
    x = torch.tensor([[1e30, -1e30], [0.0, 0.0]], requires_grad=True)
    weights = gate(x)
    assert weights.isfinite().all()
    weights[..., 0].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


# What is refused.


def test_a_static_gate_has_no_hidden_layer() -> None:
    with pytest.raises(ValueError, match="hidden = 8: a static gate does not read examples"):
        Softmax(num_tasks=2, num_experts=3, hidden=8)


@pytest.mark.parametrize("hidden", [0, -1])
def test_a_hidden_layer_has_at_least_one_unit(hidden: int) -> None:
    with pytest.raises(ValueError, match=f"hidden = {hidden}"):
        Softmax(num_tasks=2, num_experts=3, input_size=4, hidden=hidden)
