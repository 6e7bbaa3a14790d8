"""Softmax selectors, the ablation gate of DSelect-k's appendix C.1."""

from __future__ import annotations

import math

import pytest
import torch

from ranking.errors import NotConvergedError
from ranking.gates import SoftmaxSelectors


def make_gate() -> SoftmaxSelectors:
    """Return a gate with softmax(α) = (¾, ¼) and softmax(β) = (⅛, ¼, ⅝), (½, ¼, ¼)."""
    gate = SoftmaxSelectors(num_tasks=1, num_experts=3, k=2)
    two = math.log(2.0)
    with torch.no_grad():
        gate.alpha.copy_(torch.tensor([[math.log(3.0), 0.0]]))
        gate.beta.copy_(torch.tensor([[[0.0, two, math.log(5.0)], [two, 0.0, 0.0]]]))
    return gate


def test_softmax_selectors_weights_of_three_experts_match_hand_calculation() -> None:
    weights, selectors = make_gate().route()
    assert selectors is not None
    torch.testing.assert_close(selectors, torch.tensor([[[0.125, 0.25, 0.625], [0.5, 0.25, 0.25]]]))
    torch.testing.assert_close(weights, torch.tensor([[0.75 * 0.125 + 0.125, 0.25, 0.75 * 0.625 + 0.0625]]))


def test_softmax_selectors_anneal_sharpens_selectors() -> None:
    gate = make_gate()
    gate.anneal(0.5)  # Squared probabilities, in proportion 1 : 4 : 25 and 4 : 1 : 1.
    expected = torch.tensor([[[1 / 30, 4 / 30, 25 / 30], [4 / 6, 1 / 6, 1 / 6]]])
    torch.testing.assert_close(gate.selectors().detach(), expected)
    gate.anneal(0.01)
    torch.testing.assert_close(gate().detach(), torch.tensor([[0.25, 0.0, 0.75]]))


def test_softmax_selectors_initial_selectors_differ_and_are_nearly_uniform() -> None:
    gate = SoftmaxSelectors(num_tasks=3, num_experts=8, k=2)
    assert not torch.equal(gate.selectors()[:, 0], gate.selectors()[:, 1])
    torch.testing.assert_close(gate.selectors().detach(), torch.full((3, 2, 8), 1 / 8), rtol=0.0, atol=0.01)


def test_softmax_selectors_distance_is_one_minus_largest_probability() -> None:
    torch.testing.assert_close(make_gate().distance(), torch.tensor([[0.375, 0.5]]))


def test_softmax_selectors_at_tiny_temperature_are_not_converged_before_finalize() -> None:
    gate = make_gate()
    gate.anneal(1e-6)
    assert gate.needs_finalize
    assert gate.converged().tolist() == [False]
    with pytest.raises(NotConvergedError, match="task 'click'"):
        gate.selection(["click"])


def test_softmax_selectors_finalize_takes_largest_entry_and_counts_forced_selectors() -> None:
    gate = make_gate()
    assert gate.finalize() == 2
    assert torch.equal(gate.selectors(), torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]))
    assert gate.converged().all()
    assert gate.distance().tolist() == [[0.0, 0.0]]
    assert gate.selection().tasks == {"0": {0: pytest.approx(0.25), 2: pytest.approx(0.75)}}


def test_softmax_selectors_finalize_of_nearly_one_hot_gate_forces_no_selector() -> None:
    gate = make_gate()
    gate.anneal(0.01)
    before = gate().detach()
    assert gate.finalize() == 0
    torch.testing.assert_close(gate().detach(), before)
    assert gate.finalize() == 0


def test_softmax_selectors_finalize_of_equal_entries_takes_first() -> None:
    gate = SoftmaxSelectors(num_tasks=1, num_experts=4, k=1)
    with torch.no_grad():
        gate.beta.copy_(torch.tensor([[[0.0, 1.0, 1.0, 0.5]]]))
    gate.finalize()
    assert gate.selection().tasks == {"0": {1: 1.0}}


def test_softmax_selectors_selection_sums_weights_of_selectors_with_same_expert() -> None:
    gate = SoftmaxSelectors(num_tasks=1, num_experts=3, k=3)
    with torch.no_grad():
        gate.beta.copy_(torch.tensor([[[0.0, 0.0, 9.0], [9.0, 0.0, 0.0], [0.0, 0.0, 8.0]]]))
    gate.finalize()
    assert gate.selection().tasks == {"0": {0: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}}


def test_softmax_selectors_after_finalize_only_alpha_has_gradient() -> None:
    gate = make_gate()
    gate.finalize()
    (gate() * torch.randn(1, 3)).sum().backward()
    assert gate.beta.grad is None
    assert gate.alpha.grad is not None
    assert gate.alpha.grad.ne(0).any()


# Experts budget.


@pytest.mark.parametrize("kept", [[0], [2, 1], [0, 1, 2, 3, 4]])
def test_softmax_selectors_restrict_removes_experts_and_keeps_odds_of_others(kept: list[int]) -> None:
    gate = SoftmaxSelectors(num_tasks=4, num_experts=5, k=2)
    with torch.no_grad():
        gate.beta.normal_()
    before = gate.selectors().detach()[..., kept]
    gate.restrict(kept)
    after = gate.selectors().detach()
    removed = [e for e in range(5) if e not in kept]
    assert after[..., removed].count_nonzero() == 0
    torch.testing.assert_close(after[..., kept], before / before.sum(-1, keepdim=True))
    (gate() * torch.randn(5)).sum().backward()
    assert gate.beta.grad is not None
    assert gate.beta.grad.isfinite().all()
    torch.optim.Adam([gate.beta], lr=1.0).step()
    assert gate.selectors().isfinite().all()
    gate.finalize()
    assert set(gate.selection().experts_used) <= set(kept)


@pytest.mark.parametrize("experts", [[], [0, 0], [-1], [5]], ids=str)
def test_softmax_selectors_restrict_to_invalid_experts_raises_and_keeps_weights(experts: list[int]) -> None:
    gate = SoftmaxSelectors(num_tasks=3, num_experts=5, k=2)
    before = gate()
    with pytest.raises(ValueError, match="experts = "):
        gate.restrict(experts)
    assert torch.equal(gate(), before)


def test_softmax_selectors_restrict_to_a_removed_expert_raises() -> None:
    gate = make_gate()
    gate.restrict([0, 2])
    with pytest.raises(ValueError, match=r"experts = \[1, 2\]: some of them were removed before"):
        gate.restrict([1, 2])


def test_softmax_selectors_reopen_trains_again_with_removed_experts_least_likely() -> None:
    gate = make_gate()
    gate.restrict([0, 2])
    gate.finalize()
    gate.reopen(1.0)
    assert not gate.converged().any()
    assert gate.available == [0, 1, 2]
    expected = torch.tensor([[[1 / 7, 1 / 7, 5 / 7], [2 / 4, 1 / 4, 1 / 4]]])
    torch.testing.assert_close(gate.selectors().detach(), expected)
    (gate() * torch.randn(1, 3)).sum().backward()
    assert gate.beta.grad is not None
    assert gate.beta.grad.ne(0).any()
