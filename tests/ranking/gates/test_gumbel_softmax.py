"""Gumbel-softmax gate: one Bernoulli selector per expert (DSelect-k, appendix D)."""

from __future__ import annotations

import math

import pytest
import torch

from ranking.errors import NotConvergedError
from ranking.gates import GumbelSoftmax


def gate_with(theta: list[list[float]], alpha: list[list[float]] | None = None) -> GumbelSoftmax:
    gate = GumbelSoftmax(len(theta), len(theta[0]))
    with torch.no_grad():
        gate.theta.copy_(torch.tensor(theta))
        if alpha is not None:
            gate.alpha.copy_(torch.tensor(alpha))
    return gate


def logit(p: float) -> float:
    return math.log(p / (1 - p))


# Forward pass.


def test_gumbel_softmax_in_eval_mode_uses_experts_with_psi_of_at_least_half() -> None:
    gate = gate_with([[0.0, -1e-3, 2.0], [-1.0, 0.1, -2.0]], [[0.0, 0.0, math.log(2.0)], [0.0, 0.0, 0.0]]).eval()
    expected = torch.tensor([[0.25, 0.0, 0.5], [0.0, 1 / 3, 0.0]])  # softmax(α) = (¼, ¼, ½), masked, not renormalized
    torch.testing.assert_close(gate().detach(), expected)
    assert torch.equal(gate(), gate())


def test_gumbel_softmax_in_training_mode_samples_weights() -> None:
    gate = GumbelSoftmax(3, 4).train()
    assert not torch.equal(gate(), gate())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_gumbel_softmax_training_sample_equals_relaxed_bernoulli_formula(temperature: float) -> None:
    gate = gate_with([[0.3, -0.7]]).train()
    gate.anneal(temperature)
    torch.manual_seed(5)
    weights = gate().detach()
    torch.manual_seed(5)
    u = torch.rand(1, 2)
    noise = torch.log(u) - torch.log(1 - u)
    torch.testing.assert_close(weights, 0.5 / (1 + torch.exp(-(torch.tensor([[0.3, -0.7]]) + noise) / temperature)))


def test_gumbel_softmax_low_temperature_samples_are_nearly_binary_with_mean_psi() -> None:
    psi = [0.1, 0.5, 0.73, 0.95]
    gate = gate_with([[logit(p) for p in psi]] * 40_000).train()
    gate.anneal(0.0001)  # Clamped to MIN_TEMPERATURE.
    sampled = gate().detach() * 4
    torch.testing.assert_close(sampled.mean(0), torch.tensor(psi), rtol=0.0, atol=0.015)
    assert float(((sampled < 0.05) | (sampled > 0.95)).float().mean()) > 0.8


def test_gumbel_softmax_initial_psi_is_0_731() -> None:
    gate = GumbelSoftmax(2, 4)
    assert gate.theta.sigmoid().flatten().tolist() == pytest.approx([0.731] * 8, abs=1e-3)


# Gradients.


def test_gumbel_softmax_gradients_are_finite_and_nonzero_at_any_temperature() -> None:
    for temperature in (1.0, 0.1, 1e-9):
        gate = GumbelSoftmax(3, 4).train()
        gate.anneal(temperature)
        (gate() * torch.randn(3, 4)).sum().backward()
        for parameter in (gate.alpha, gate.theta):
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            assert parameter.grad.ne(0).any()


def test_gumbel_softmax_training_sample_passes_gradcheck() -> None:
    gate = GumbelSoftmax(2, 3).double().train()

    def weights(theta: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        result: torch.Tensor = torch.func.functional_call(gate, {"theta": theta, "alpha": alpha}, ())
        return result

    theta, alpha = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(weights, (theta, alpha))


def test_gumbel_softmax_freeze_alpha_disables_and_enables_gradient_of_alpha() -> None:
    gate = GumbelSoftmax(2, 3).train()
    for frozen in (True, False):
        gate.freeze_alpha(frozen)
        (gate() * torch.randn(3)).sum().backward()
        assert (gate.alpha.grad is None) == frozen


# Penalty.


def test_gumbel_softmax_log_psi_matches_hand_calculation() -> None:
    gate = gate_with([[logit(0.5), logit(0.25)], [logit(0.8), logit(0.1)]])
    assert float(gate.log_psi().detach()) == pytest.approx(math.log(0.5 * 0.25 * 0.8 * 0.1))


def test_gumbel_softmax_log_psi_gradient_lowers_psi() -> None:
    gate = GumbelSoftmax(2, 3)
    gate.log_psi().backward()
    assert gate.theta.grad is not None
    torch.testing.assert_close(gate.theta.grad, torch.full((2, 3), 1 - 1 / (1 + math.exp(-1.0))))


# Selection.


def test_gumbel_softmax_before_finalize_is_not_converged() -> None:
    gate = GumbelSoftmax(2, 3)
    gate.anneal(1e-3)
    assert gate.needs_finalize
    assert not gate.converged().any()
    with pytest.raises(NotConvergedError, match="not converged for task 'click', 'like'"):
        gate.selection(["click", "like"])


def test_gumbel_softmax_finalize_fixes_experts_of_eval_mode() -> None:
    gate = gate_with([[1.0, -1.0, 0.5], [-2.0, 3.0, -0.1]])
    expected = gate.eval()()
    assert gate.finalize() == 0
    for _ in range(3):
        assert torch.equal(gate.train()(), expected)
    assert gate.converged().all()
    third = pytest.approx(1 / 3)
    assert gate.selection(["a", "b"]).tasks == {"a": {0: third, 2: third}, "b": {1: third}}


def test_gumbel_softmax_finalize_keeps_most_likely_expert_of_task_without_expert() -> None:
    gate = gate_with([[-3.0, -1.0, -2.0], [1.0, -1.0, -1.0], [-1.0, -2.0, -0.5]])
    assert gate.eval()().count_nonzero(1).tolist() == [0, 1, 0]
    assert gate.finalize() == 2
    assert [row.nonzero().flatten().tolist() for row in gate()] == [[1], [0], [2]]


def test_gumbel_softmax_after_finalize_only_alpha_has_gradient() -> None:
    gate = gate_with([[1.0, -1.0, 0.5]])
    gate.finalize()
    (gate.train()() * torch.randn(3)).sum().backward()
    assert gate.theta.grad is None
    assert gate.alpha.grad is not None
    assert gate.alpha.grad.ne(0).any()


def test_gumbel_softmax_reopen_samples_and_trains_again() -> None:
    gate = gate_with([[1.0, -1.0, 0.5]]).train()
    gate.finalize()
    gate.reopen(0.5)
    assert not gate.converged().any()
    weights = gate()
    assert not torch.equal(weights, gate())
    (weights * torch.randn(3)).sum().backward()
    assert gate.theta.grad is not None
    assert gate.theta.grad.ne(0).any()
