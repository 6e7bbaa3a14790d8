"""Attentive gate (Krishnamurthy et al., section 5) and the softmax gate into which it is distilled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ranking.errors import NotConvergedError
from ranking.gates import AttentiveGate, Softmax

TASKS, EXPERTS, INPUTS, WIDTH, ROWS = 3, 5, 6, 4, 7


@pytest.fixture
def gate() -> AttentiveGate:
    gate = AttentiveGate(TASKS, EXPERTS, INPUTS, WIDTH)
    with torch.no_grad():
        gate.hidden_bias.normal_()
        gate.query.normal_()
        gate.key.normal_()
    return gate


def random_inputs() -> tuple[Tensor, Tensor]:
    """Return random examples [batch, inputs] and expert outputs [experts, batch, width]."""
    return torch.randn(ROWS, INPUTS), torch.randn(EXPERTS, ROWS, WIDTH)


# Equations 4–6.


def test_attentive_weights_equal_attention_of_explicit_queries_and_keys(gate: AttentiveGate) -> None:
    x, outputs = random_inputs()
    weights = gate(x, outputs)
    for t in range(TASKS):
        hidden = F.relu(F.linear(x, gate.hidden_weight[t], gate.hidden_bias[t]))
        for row in range(ROWS):
            query = hidden[row] @ gate.query[t]  # Q = G W_q
            keys = torch.stack([outputs[e, row] @ gate.key[t] for e in range(EXPERTS)])  # K_i = E_i W_k
            attention = torch.softmax(keys @ query / math.sqrt(WIDTH), -1)  # softmax(QKᵀ/√h)
            torch.testing.assert_close(weights[row, t], attention)


def test_attentive_weights_of_two_experts_match_hand_calculation() -> None:
    """G = relu(2 − 1, −1) = (1, 0); Q = (3, 1); K = (1, 0) and (0, 1): scores 3/√2 and 1/√2."""
    gate = AttentiveGate(num_tasks=1, num_experts=2, input_size=1, width=2)
    with torch.no_grad():
        gate.hidden_weight.copy_(torch.tensor([[[2.0], [-1.0]]]))
        gate.hidden_bias.copy_(torch.tensor([[-1.0, 0.0]]))
        gate.query.copy_(torch.tensor([[[3.0, 1.0], [7.0, 7.0]]]))
        gate.key.copy_(torch.eye(2).unsqueeze(0))
    weights = gate(torch.ones(1, 1), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    first = 1 / (1 + math.exp(-2 / math.sqrt(2)))
    torch.testing.assert_close(weights.detach(), torch.tensor([[[first, 1 - first]]]))


def test_attentive_gradient_reaches_expert_outputs_and_all_parameters(gate: AttentiveGate) -> None:
    x, outputs = random_inputs()
    outputs.requires_grad_()
    (gate(x, outputs) * torch.randn(EXPERTS)).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.ne(0).any()
    for name, parameter in gate.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.ne(0).any(), name


# Convergence.


def test_attentive_never_converges_and_selection_error_advises_distillation(gate: AttentiveGate) -> None:
    gate.finalize()
    assert gate.needs_finalize, "training finalizes the gate by distilling it"
    assert not gate.converged().any()
    with pytest.raises(
        NotConvergedError, match=r"needs the outputs of all experts.*distilled into a per-example softmax gate"
    ):
        gate.selection()


# Running means.


def test_attentive_mean_outputs_are_updated_in_training_only(gate: AttentiveGate) -> None:
    x, outputs = random_inputs()
    first, second = outputs + 1.0, outputs - 2.0
    assert torch.equal(gate.mean_outputs, torch.zeros(EXPERTS, WIDTH))
    gate.train()(x, first)
    gate(x, second)
    expected = 0.9 * 0.1 * first.mean(1) + 0.1 * second.mean(1)
    torch.testing.assert_close(gate.mean_outputs, expected)
    gate.eval()(x, first)
    torch.testing.assert_close(gate.mean_outputs, expected)


def test_attentive_mean_outputs_approach_batch_mean(gate: AttentiveGate) -> None:
    x, outputs = random_inputs()
    for _ in range(150):
        gate.train()(x, outputs)
    torch.testing.assert_close(gate.mean_outputs, outputs.mean(1), rtol=1e-4, atol=1e-5)
    assert not gate.mean_outputs.requires_grad


# Serving gate.


def test_attentive_serving_gate_equals_attention_to_mean_outputs(gate: AttentiveGate) -> None:
    with torch.no_grad():
        gate.mean_outputs.normal_()
    x = torch.randn(ROWS, INPUTS)
    means = gate.mean_outputs.unsqueeze(1).expand(EXPERTS, ROWS, WIDTH)
    torch.testing.assert_close(gate.serving_gate()(x), gate.eval()(x, means))


def test_attentive_serving_gate_approximates_attention_to_outputs_near_mean(gate: AttentiveGate) -> None:
    x, outputs = random_inputs()
    means = outputs.mean(1, keepdim=True)
    near = means + 0.01 * (outputs - means)
    gate.mean_outputs.copy_(means.squeeze(1))
    torch.testing.assert_close(gate.serving_gate()(x), gate.eval()(x, near), rtol=0.0, atol=0.1)


def test_attentive_serving_gate_is_independent_softmax_gate_of_same_size(gate: AttentiveGate) -> None:
    gate.double()
    serving, x = gate.serving_gate(), torch.randn(ROWS, INPUTS, dtype=torch.float64)
    assert isinstance(serving, Softmax)
    assert (serving.num_tasks, serving.num_experts, serving.input_size) == (TASKS, EXPERTS, INPUTS)
    before = serving(x)
    assert before.dtype == torch.float64
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.add_(1.0)
    assert torch.equal(serving(x), before)
    assert all(parameter.requires_grad for parameter in serving.parameters())
    assert serving.converged().all()
    assert serving.serving_gate() is serving


def test_attentive_serving_gate_training_reduces_distance_to_attention(gate: AttentiveGate) -> None:
    x, outputs = torch.randn(64, INPUTS), 2.0 * torch.randn(EXPERTS, 1, WIDTH) + torch.randn(EXPERTS, 64, WIDTH) / 3
    for _ in range(100):
        gate.train()(x, outputs)
    teacher, student = gate.eval()(x, outputs).detach(), gate.serving_gate()

    def distance() -> Tensor:
        return -(teacher * student(x).clamp(min=1e-12).log()).sum(-1).mean()

    optimizer, before = torch.optim.Adam(student.parameters(), lr=0.01), float(distance().detach())
    for _ in range(100):
        optimizer.zero_grad()
        distance().backward()
        optimizer.step()
    assert float(distance().detach()) < before
