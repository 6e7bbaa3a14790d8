"""Surplus codes, which occur if the number of experts is not a power of two (DSelect-k, appendix B.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ranking.errors import NotConvergedError
from ranking.gates import DSelectK, regularizers

SetCodes = Callable[[DSelectK, list[list[int]]], None]

EXPERT_COUNTS = [3, 5, 6, 7, 12, 33]
"""Numbers of experts with surplus codes."""


def assert_on_simplex(weights: Tensor) -> None:
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0.0, atol=1e-5)


def num_codes(n: int) -> int:
    return 2 ** (n - 1).bit_length()


def test_dselect_k_unknown_surplus_treatment_is_rejected() -> None:
    unknown: Any = "ignore"
    with pytest.raises(ValueError, match="surplus = 'ignore': choose fold, random or penalty"):
        DSelectK(2, 5, 2, surplus=unknown)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_dselect_k_with_power_of_two_experts_has_no_surplus_codes(n: int) -> None:
    for surplus in ("fold", "random", "penalty"):
        assert DSelectK(2, n, 1, surplus=surplus).expert_of_code.tolist() == list(range(n))


# surplus = "fold".


@pytest.mark.parametrize("n", EXPERT_COUNTS)
def test_dselect_k_fold_maps_surplus_codes_to_experts(n: int, set_codes: SetCodes) -> None:
    codes = num_codes(n)
    gate = DSelectK(num_tasks=codes, num_experts=n, k=1)
    set_codes(gate, [[code] for code in range(codes)])
    weights = gate()
    assert_on_simplex(weights)
    assert weights.argmax(1).tolist() == [code if code < n else code - n for code in range(codes)]
    assert (weights.max(1).values == 1.0).all()
    assert gate.selection().experts_used == list(range(n))


@pytest.mark.parametrize("n", EXPERT_COUNTS)
def test_dselect_k_fold_adds_probability_of_surplus_code_to_its_expert(n: int) -> None:
    codes = num_codes(n)
    folded, full = DSelectK(3, n, 1), DSelectK(3, codes, 1)
    with torch.no_grad():
        folded.z.uniform_(-0.5, 0.5)
        full.z.copy_(folded.z)
    expected = full()
    expected[:, : codes - n] += expected[:, n:]
    torch.testing.assert_close(folded(), expected[:, :n])


@pytest.mark.parametrize("n", EXPERT_COUNTS)
@pytest.mark.parametrize("depth", [0.999, 1.0, 5.0], ids=["just inside", "at the edge", "far outside"])
def test_dselect_k_fold_gradients_at_surplus_codes_are_finite(n: int, depth: float, set_codes: SetCodes) -> None:
    surplus = list(range(n, num_codes(n)))
    gate = DSelectK(num_tasks=len(surplus), num_experts=n, k=2)
    set_codes(gate, [[code, code] for code in surplus])
    with torch.no_grad():
        gate.z.mul_(depth / 2)
    assert_on_simplex(gate())
    (gate() * torch.randn(len(surplus), n)).sum().backward()
    for parameter in gate.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


# surplus = "random".


@pytest.mark.parametrize("n", EXPERT_COUNTS)
def test_dselect_k_random_surplus_maps_each_code_to_a_fixed_expert(n: int, set_codes: SetCodes) -> None:
    codes = num_codes(n)
    gate = DSelectK(num_tasks=codes, num_experts=n, k=1, surplus="random")
    set_codes(gate, [[code] for code in range(codes)])
    weights = gate()
    assert_on_simplex(weights)
    assert (weights.max(1).values == 1.0).all()
    assert weights.argmax(1).tolist()[:n] == list(range(n)), "codes below n keep their expert"
    assert torch.equal(gate(), weights)
    assert gate.converged().all()
    assert gate.finalize() == 0
    assert torch.equal(gate(), weights)


def test_dselect_k_random_surplus_draws_every_expert_across_gates() -> None:
    experts = torch.stack([DSelectK(1, 33, 1, surplus="random").expert_of_code[33:] for _ in range(40)])
    assert sorted(set(experts.flatten().tolist())) == list(range(33))


# surplus = "penalty".


def test_dselect_k_penalty_surplus_probability_is_lost_and_penalized() -> None:
    gate = DSelectK(num_tasks=1, num_experts=3, k=1, surplus="penalty")
    with torch.no_grad():
        gate.z.fill_(0.25)  # S(¼) = 0.84375, so the probability of code 3 is 0.84375².
    lost = 0.84375**2
    selectors = gate.selectors()
    torch.testing.assert_close(selectors.sum(-1), torch.tensor([[1 - lost]]))
    assert float(regularizers.surplus(selectors).detach()) == pytest.approx(1 / (1 - lost))


def test_dselect_k_penalty_gradient_moves_codes_away_from_surplus_codes() -> None:
    gate = DSelectK(num_tasks=6, num_experts=5, k=2, surplus="penalty")
    before = gate.selectors().sum(-1).detach()
    for _ in range(200):
        (gradient,) = torch.autograd.grad(regularizers.surplus(gate.selectors()), gate.z)
        with torch.no_grad():
            gate.z.sub_(0.05 * gradient)
    assert (gate.selectors().sum(-1) > before).all()
    assert (gate.codes() < 5).all()


@pytest.mark.parametrize("n", EXPERT_COUNTS)
@pytest.mark.parametrize("depth", [0.999, 1.0, 5.0], ids=["just inside", "at the edge", "far outside"])
def test_dselect_k_penalty_and_its_gradient_at_surplus_codes_are_finite(
    n: int, depth: float, set_codes: SetCodes
) -> None:
    surplus = list(range(n, num_codes(n)))
    gate = DSelectK(num_tasks=len(surplus), num_experts=n, k=2, surplus="penalty")
    set_codes(gate, [[code, code] for code in surplus])
    with torch.no_grad():
        gate.z.mul_(depth / 2)
    weights, selectors = gate.route()
    assert selectors is not None
    penalty = regularizers.surplus(selectors)
    assert float(penalty.detach()) == pytest.approx(1000.0 * 2 * len(surplus)), "the clamped value per selector"
    (penalty + (weights * torch.randn(n)).sum()).backward()
    for parameter in gate.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_dselect_k_penalty_selector_at_surplus_code_is_not_converged(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=3, num_experts=5, k=2, surplus="penalty")
    set_codes(gate, [[0, 4], [1, 6], [7, 5]])
    assert gate.converged().tolist() == [True, False, False]
    assert gate.distance().tolist() == [[0, 0], [0, 1], [1, 1]]
    with pytest.raises(NotConvergedError, match=r"task 'b' selector 1 is 100\.0% of γ/2 away"):
        gate.selection(["a", "b", "c"])


@pytest.mark.parametrize("n", EXPERT_COUNTS)
def test_dselect_k_penalty_finalize_assigns_an_expert_to_every_task(n: int, set_codes: SetCodes) -> None:
    surplus = list(range(n, num_codes(n)))
    gate = DSelectK(num_tasks=len(surplus), num_experts=n, k=2, surplus="penalty")
    set_codes(gate, [[code, code] for code in surplus])
    assert gate().count_nonzero() == 0, "these tasks have no expert before finalization, as published"
    assert gate.finalize() == 2 * len(surplus)
    assert gate.converged().all()
    assert_on_simplex(gate())
    assert gate().argmax(1).tolist() == [code - n for code in surplus]
    assert gate.selection().tasks == {str(t): {code - n: pytest.approx(1.0)} for t, code in enumerate(surplus)}


def test_dselect_k_penalty_per_example_finalize_assigns_an_expert_to_every_example() -> None:
    gate = DSelectK(num_tasks=2, num_experts=5, k=2, input_size=4, surplus="penalty")
    with torch.no_grad():
        gate.w.normal_(std=9.0)
    x = torch.randn(300, 4)
    assert float(gate(x).sum(-1).detach().min()) == 0.0, "some task of some example has no expert"
    gate.finalize()
    assert_on_simplex(gate(x).detach())


def test_dselect_k_penalty_finalize_does_not_count_as_changed_codes() -> None:
    gate = DSelectK(num_tasks=30, num_experts=5, k=2, surplus="penalty")
    gate.finalize()
    assert gate.codes_changed() == 0
