"""The ablation gate of DSelect-k's appendix C.1: softmax selectors."""

from __future__ import annotations

import math

import pytest
import torch

from ranking.errors import NotConvergedError
from ranking.gates import SoftmaxSelectors


def by_hand() -> SoftmaxSelectors:
    """softmax(α) = (¾, ¼); softmax(β) = (⅛, ¼, ⅝) and (½, ¼, ¼)."""
    gate = SoftmaxSelectors(num_tasks=1, num_experts=3, k=2)
    two = math.log(2.0)
    with torch.no_grad():
        gate.alpha.copy_(torch.tensor([[math.log(3.0), 0.0]]))
        gate.beta.copy_(torch.tensor([[[0.0, two, math.log(5.0)], [two, 0.0, 0.0]]]))
    return gate


def test_three_experts_by_hand() -> None:
    weights, selectors = by_hand().route()
    assert selectors is not None
    torch.testing.assert_close(selectors, torch.tensor([[[0.125, 0.25, 0.625], [0.5, 0.25, 0.25]]]))
    torch.testing.assert_close(weights, torch.tensor([[0.75 * 0.125 + 0.125, 0.25, 0.75 * 0.625 + 0.0625]]))


def test_a_lower_temperature_makes_them_harder() -> None:
    gate = by_hand()
    gate.anneal(0.5)  # the probabilities' squares: 1, 4, 25 and 4, 1, 1
    expected = torch.tensor([[[1 / 30, 4 / 30, 25 / 30], [4 / 6, 1 / 6, 1 / 6]]])
    torch.testing.assert_close(gate.selectors().detach(), expected)
    gate.anneal(0.01)
    torch.testing.assert_close(gate().detach(), torch.tensor([[0.25, 0.0, 0.75]]))


def test_selectors_start_different_from_each_other_and_far_from_decided() -> None:
    gate = SoftmaxSelectors(num_tasks=3, num_experts=8, k=2)
    assert not torch.equal(gate.selectors()[:, 0], gate.selectors()[:, 1])
    torch.testing.assert_close(gate.selectors().detach(), torch.full((3, 2, 8), 1 / 8), rtol=0.0, atol=0.01)


def test_distance_is_what_the_largest_probability_lacks() -> None:
    torch.testing.assert_close(by_hand().distance(), torch.tensor([[0.375, 0.5]]))


def test_however_low_the_temperature_the_choice_is_final_only_once_concluded() -> None:
    gate = by_hand()
    gate.anneal(1e-6)
    assert gate.needs_finalize
    assert gate.converged().tolist() == [False]
    with pytest.raises(NotConvergedError, match="task 'click'"):
        gate.selection(["click"])


def test_concluding_takes_the_largest_and_counts_what_was_open() -> None:
    gate = by_hand()
    assert gate.finalize() == 2
    assert torch.equal(gate.selectors(), torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]))
    assert gate.converged().all()
    assert gate.distance().tolist() == [[0.0, 0.0]]
    assert gate.selection().tasks == {"0": {0: pytest.approx(0.25), 2: pytest.approx(0.75)}}


def test_concluding_a_gate_that_is_nearly_one_hot_forces_nothing() -> None:
    gate = by_hand()
    gate.anneal(0.01)
    before = gate().detach()
    assert gate.finalize() == 0
    torch.testing.assert_close(gate().detach(), before)
    assert gate.finalize() == 0


def test_of_two_equals_the_first_is_taken() -> None:
    gate = SoftmaxSelectors(num_tasks=1, num_experts=4, k=1)
    with torch.no_grad():
        gate.beta.copy_(torch.tensor([[[0.0, 1.0, 1.0, 0.5]]]))
    gate.finalize()
    assert gate.selection().tasks == {"0": {1: 1.0}}


def test_selectors_that_chose_the_same_expert_are_summed() -> None:
    gate = SoftmaxSelectors(num_tasks=1, num_experts=3, k=3)
    with torch.no_grad():
        gate.beta.copy_(torch.tensor([[[0.0, 0.0, 9.0], [9.0, 0.0, 0.0], [0.0, 0.0, 8.0]]]))
    gate.finalize()
    assert gate.selection().tasks == {"0": {0: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}}


def test_after_that_only_the_selectors_weights_learn() -> None:
    gate = by_hand()
    gate.finalize()
    (gate() * torch.randn(1, 3)).sum().backward()
    assert gate.beta.grad is None
    assert gate.alpha.grad is not None
    assert gate.alpha.grad.ne(0).any()


# A budget.


@pytest.mark.parametrize("kept", [[0], [2, 1], [0, 1, 2, 3, 4]])
def test_the_dropped_experts_are_never_chosen_again_and_the_others_keep_their_odds(kept: list[int]) -> None:
    gate = SoftmaxSelectors(num_tasks=4, num_experts=5, k=2)
    with torch.no_grad():
        gate.beta.normal_()
    before = gate.selectors().detach()[..., kept]
    gate.restrict(kept)
    after = gate.selectors().detach()
    dropped = [e for e in range(5) if e not in kept]
    assert after[..., dropped].count_nonzero() == 0
    torch.testing.assert_close(after[..., kept], before / before.sum(-1, keepdim=True))
    (gate() * torch.randn(5)).sum().backward()
    assert gate.beta.grad is not None
    assert gate.beta.grad.isfinite().all()
    torch.optim.Adam([gate.beta], lr=1.0).step()
    assert gate.selectors().isfinite().all()
    gate.finalize()
    assert set(gate.selection().experts_used) <= set(kept)


@pytest.mark.parametrize("wrong", [[], [0, 0], [-1], [5]], ids=str)
def test_experts_that_are_no_set_of_experts_are_refused_and_change_nothing(wrong: list[int]) -> None:
    gate = SoftmaxSelectors(num_tasks=3, num_experts=5, k=2)
    before = gate()
    with pytest.raises(ValueError, match="experts = "):
        gate.restrict(wrong)
    assert torch.equal(gate(), before)
