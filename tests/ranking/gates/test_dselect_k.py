"""Static DSelect-k gate, which selects at most k of n experts per task."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call

from ranking.errors import NotConvergedError
from ranking.gates import DSelectK, smooth_step

SetCodes = Callable[[DSelectK, list[list[int]]], None]

EXPERT_COUNTS = [1, 2, 3, 5, 6, 7, 8, 12, 16, 33, 64]


def with_z(gate: DSelectK, z: list[list[list[float]]]) -> DSelectK:
    with torch.no_grad():
        gate.z.copy_(torch.tensor(z))
    return gate


def assert_on_simplex(weights: Tensor) -> None:
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0.0, atol=1e-5)


# Validation.


@pytest.mark.parametrize("gamma", [0.0, -1.0])
def test_dselect_k_gamma_not_positive_is_rejected(gamma: float) -> None:
    with pytest.raises(ValueError, match=f"gamma = {gamma}"):
        DSelectK(num_tasks=2, num_experts=4, k=2, gamma=gamma)


@pytest.mark.parametrize(("tasks", "experts"), [(0, 4), (2, 0)])
def test_dselect_k_without_tasks_or_experts_is_rejected(tasks: int, experts: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DSelectK(tasks, experts, k=1)


# Initialization.


def test_dselect_k_initial_codes_lie_near_middle_of_fractional_region() -> None:
    gate = DSelectK(num_tasks=50, num_experts=8, k=2, gamma=4.0)
    assert float(gate.z.detach().abs().max()) <= 0.02 * 4.0
    assert float(gate.z.detach().std()) > 0.0, "equal selectors would stay equal"
    assert not gate.converged().any()
    torch.testing.assert_close(gate(), torch.full((50, 8), 1 / 8), rtol=0.0, atol=0.03)


def test_dselect_k_initial_selector_weights_are_equal() -> None:
    assert torch.equal(DSelectK(3, 8, 2).alpha.detach(), torch.zeros(3, 2))


# Forward pass.


@pytest.mark.parametrize("n", EXPERT_COUNTS)
def test_dselect_k_initial_weights_are_distribution_over_experts(n: int) -> None:
    gate = DSelectK(num_tasks=6, num_experts=n, k=min(3, n))
    weights = gate()
    assert weights.shape == (6, n)
    assert_on_simplex(weights)


@given(st.sampled_from(EXPERT_COUNTS), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 3.0]))
def test_dselect_k_weights_for_random_codes_are_distribution_over_experts(
    n: int, k: int, seed: int, spread: float
) -> None:
    random = torch.Generator().manual_seed(seed)
    gate = DSelectK(num_tasks=4, num_experts=n, k=min(k, n))
    with torch.no_grad():
        gate.z.normal_(std=spread, generator=random)
        gate.alpha.normal_(std=spread, generator=random)
    assert_on_simplex(gate())
    selectors = gate.route().selectors
    assert selectors is not None
    assert_on_simplex(selectors)


def test_dselect_k_weights_of_four_experts_match_hand_calculation() -> None:
    """Equation 3: r(z) = [z̄₁z̄₂, z₁z̄₂, z̄₁z₂, z₁z₂], and equation 6 with softmax(α) = (¾, ¼)."""
    gate = with_z(DSelectK(num_tasks=1, num_experts=4, k=2), [[[0.25, -0.1], [-1.0, 1.0]]])
    with torch.no_grad():
        gate.alpha.copy_(torch.tensor([[math.log(3.0), 0.0]]))
    first = [0.15625 * 0.648, 0.84375 * 0.648, 0.15625 * 0.352, 0.84375 * 0.352]  # S(¼) = 0.84375, S(−0.1) = 0.352
    second = [0.0, 0.0, 1.0, 0.0]  # z₁ = 0, z₂ = 1
    torch.testing.assert_close(gate.selectors(), torch.tensor([[first, second]]))
    expected = [0.75 * a + 0.25 * b for a, b in zip(first, second, strict=True)]
    torch.testing.assert_close(gate(), torch.tensor([expected]))


@pytest.mark.parametrize("n", [2, 8, 16])
def test_dselect_k_binary_code_selects_expert_with_its_number(n: int, set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=n, num_experts=n, k=1)
    set_codes(gate, [[code] for code in range(n)])
    assert torch.equal(gate(), torch.eye(n))
    assert gate.codes().flatten().tolist() == list(range(n))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_dselect_k_with_k_distinct_codes_selects_k_experts(k: int, set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=1, num_experts=8, k=k)
    set_codes(gate, [[1, 6, 3, 4][:k]])
    assert gate()[0].nonzero().flatten().tolist() == sorted([1, 6, 3, 4][:k])


def test_dselect_k_with_one_expert_is_converged_and_selects_it() -> None:
    gate = DSelectK(num_tasks=2, num_experts=1, k=1)
    assert torch.equal(gate(), torch.ones(2, 1))
    assert gate.converged().all()
    assert gate.selection().tasks == {"0": {0: 1.0}, "1": {0: 1.0}}
    gate.finalize()
    assert gate.codes_changed() == 0


# Gradients.


def test_dselect_k_passes_gradcheck() -> None:
    gate = DSelectK(num_tasks=2, num_experts=5, k=2).double()
    z = torch.empty(2, 2, 3, dtype=torch.float64).uniform_(-0.7, 0.7).requires_grad_()
    alpha = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def weights(z: Tensor, alpha: Tensor) -> Tensor:
        result: Tensor = functional_call(gate, {"z": z, "alpha": alpha}, ())
        return result

    assert torch.autograd.gradcheck(weights, (z, alpha))


def test_dselect_k_initial_gradients_are_nonzero() -> None:
    gate = DSelectK(num_tasks=3, num_experts=6, k=2)
    (gate() * torch.randn(3, 6)).sum().backward()
    assert gate.z.grad is not None
    assert gate.alpha.grad is not None
    assert (gate.z.grad != 0).all()
    assert (gate.alpha.grad != 0).all()


def test_dselect_k_binary_codes_have_zero_gradient(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=1, num_experts=8, k=2)
    set_codes(gate, [[5, 2]])
    (gate() * torch.randn(1, 8)).sum().backward()
    assert gate.z.grad is not None
    assert torch.equal(gate.z.grad, torch.zeros_like(gate.z))


# Precision.


def test_dselect_k_under_autocast_computes_in_float32() -> None:
    gate = DSelectK(num_tasks=4, num_experts=6, k=2)
    with torch.no_grad():
        gate.z.uniform_(-0.6, 0.6)
        gate.alpha.normal_()
    outside = gate()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gate()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


# Convergence.


def test_dselect_k_code_inside_region_that_rounds_to_one_is_not_converged() -> None:
    gate = with_z(DSelectK(num_tasks=1, num_experts=2, k=1), [[[0.5 - 1e-5]]])
    assert float(smooth_step(gate.z, gate.gamma).detach()) == 1.0, "the smooth step rounds to 1 in float32"
    assert gate.converged().tolist() == [False]
    assert float(gate.distance()) > 0.0
    with pytest.raises(NotConvergedError):
        gate.selection()


def test_dselect_k_code_at_edge_of_region_is_converged() -> None:
    gate = with_z(DSelectK(num_tasks=2, num_experts=4, k=1), [[[0.5, -0.5]], [[0.5, -0.4999]]])
    assert gate.converged().tolist() == [True, False]


def test_dselect_k_converged_is_reported_per_task(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=3, num_experts=8, k=2)
    set_codes(gate, [[1, 2], [3, 4], [5, 6]])
    with torch.no_grad():
        gate.z[1, 1, 0] = 0.2
    assert gate.converged().tolist() == [True, False, True]


def test_dselect_k_distance_is_that_of_least_binary_code_variable() -> None:
    gate = with_z(DSelectK(num_tasks=1, num_experts=4, k=2, gamma=2.0), [[[0.25, 3.0], [-1.0, 7.0]]])
    torch.testing.assert_close(gate.distance(), torch.tensor([[0.75, 0.0]]))


@given(st.floats(2**-12, 16.0, width=32), st.lists(st.floats(-(2.0**-10), 2.0**-10, width=32), min_size=2, max_size=2))
def test_dselect_k_is_converged_exactly_when_distance_is_zero(gamma: float, offsets: list[float]) -> None:
    gate = DSelectK(num_tasks=1, num_experts=4, k=1, gamma=gamma)
    with_z(gate, [[[gamma / 2 * (1 + offset) for offset in offsets]]])  # All variables lie near the edge.
    assert bool(gate.converged()[0]) == bool((gate.distance() == 0).all())


def test_dselect_k_anneal_to_tiny_gamma_makes_codes_binary() -> None:
    gate = DSelectK(num_tasks=2, num_experts=8, k=2)
    before = gate.codes()
    gate.anneal(1e-9)
    assert gate.converged().all()
    assert torch.equal(gate.codes(), before)


# Finalization.


@pytest.mark.parametrize("n", EXPERT_COUNTS)
@pytest.mark.parametrize("seed", range(3))
def test_dselect_k_finalize_selects_at_most_k_experts_per_task(n: int, seed: int) -> None:
    torch.manual_seed(seed)
    k = min(3, n)
    gate = DSelectK(num_tasks=6, num_experts=n, k=k, gamma=0.3 * (seed + 1))
    with torch.no_grad():
        gate.z.normal_(std=float(gate.gamma))
        gate.alpha.normal_()
    codes, open_selectors = gate.codes(), int((gate.distance() > 0).sum())
    assert gate.finalize() == open_selectors, "finalize returns the number of forced selectors"
    assert gate.converged().all()
    assert torch.equal(gate.codes(), codes), "each code moves to its nearer edge"
    weights = gate()
    assert_on_simplex(weights)
    assert int((weights > 0).sum(1).max()) <= k
    for selected, row in zip(gate.selection().tasks.values(), weights, strict=True):
        assert sorted(selected) == row.nonzero().flatten().tolist()
        torch.testing.assert_close(row[list(selected)], torch.tensor(list(selected.values())))


@pytest.mark.parametrize("gamma", [1e-3, 0.3, 1.0])
def test_dselect_k_finalize_of_converged_gate_changes_nothing(gamma: float) -> None:
    gate = DSelectK(num_tasks=4, num_experts=12, k=3, gamma=gamma)
    with torch.no_grad():
        gate.z.normal_(std=gamma)
        gate.z.copy_(torch.where(gate.z.abs() < gamma / 2, gamma, gate.z))
    z, weights = gate.z.detach().clone(), gate()
    assert gate.finalize() == 0
    assert torch.equal(gate.z, z)
    assert torch.equal(gate(), weights)


def test_dselect_k_finalize_moves_only_code_variables_inside_region() -> None:
    gate = with_z(DSelectK(num_tasks=1, num_experts=8, k=1), [[[0.1, -0.2, 3.0]]])
    gate.finalize()
    assert gate.z.flatten().tolist() == [0.5, -0.5, 3.0]


def test_dselect_k_after_finalize_only_alpha_has_gradient() -> None:
    gate = DSelectK(num_tasks=2, num_experts=8, k=2)
    gate.finalize()
    (gate() * torch.randn(2, 8)).sum().backward()
    assert gate.z.grad is None
    assert gate.alpha.grad is not None
    assert gate.alpha.grad.ne(0).any()


def test_dselect_k_freeze_alpha_disables_and_enables_gradient_of_alpha() -> None:
    gate = DSelectK(num_tasks=2, num_experts=8, k=2)
    for frozen in (True, False):
        gate.freeze_alpha(frozen)
        (gate() * torch.randn(2, 8)).sum().backward()
        assert (gate.alpha.grad is None) == frozen
        assert gate.z.grad is not None


# Selection.


def test_dselect_k_selection_of_open_gate_raises_with_selector_and_distance(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=3, num_experts=4, k=2)
    set_codes(gate, [[0, 1], [2, 3], [1, 2]])
    with torch.no_grad():
        gate.z[1, 1, 0] = 0.1
        gate.z[2, 0, 1] = -0.25
    with pytest.raises(NotConvergedError) as caught:
        gate.selection(["click", "like", "watch"])
    text = str(caught.value)
    assert "task 'like' selector 1 is 80.0%" in text
    assert "task 'watch' selector 0 is 50.0%" in text
    assert "click" not in text


def test_dselect_k_selection_sums_weights_of_selectors_with_same_expert(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=1, num_experts=5, k=3)
    set_codes(gate, [[7, 4, 2]])  # Code 7 means expert 2.
    with torch.no_grad():
        gate.alpha.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    (selected,) = gate.selection(["click"]).tasks.values()
    total = math.e + math.e**2 + math.e**3
    assert list(selected) == [2, 4]
    assert selected == pytest.approx({2: (math.e + math.e**3) / total, 4: math.e**2 / total})
    torch.testing.assert_close(gate()[0, [2, 4]], torch.tensor(list(selected.values())))


def test_dselect_k_selection_contains_num_experts_k_and_weights(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=2, num_experts=6, k=2)
    set_codes(gate, [[0, 1], [1, 1]])
    selection = gate.selection()
    assert (selection.num_experts, selection.k) == (6, 2)
    assert selection.tasks == {"0": {0: 0.5, 1: 0.5}, "1": {1: 1.0}}


# A given start of the selection.


@pytest.mark.parametrize("gamma", [0.5, 4.0])
@pytest.mark.parametrize("experts", EXPERT_COUNTS)
def test_dselect_k_starts_from_given_experts_and_can_still_change(experts: int, gamma: float) -> None:
    gate = DSelectK(num_tasks=3, num_experts=experts, k=1, gamma=gamma)
    start = torch.tensor([[0], [experts // 2], [experts - 1]])
    gate.start_from(start)
    assert torch.equal(gate.codes(), start)
    assert gate.codes_changed() == 0
    selected = gate().gather(1, start)
    assert (selected > 0.9).all()
    if experts == 1:
        return
    assert not gate.converged().any()
    (gradient,) = torch.autograd.grad(selected.sum(), gate.z)
    assert (gradient != 0).all(), "every code variable must be able to leave its start"
    with torch.no_grad():
        gate.z.neg_()
    gate.finalize()
    assert gate.codes_changed() == int((gate.codes() != start).sum()) > 0


# Learned changes of the selection.


def test_dselect_k_codes_changed_counts_selectors_that_left_initial_expert() -> None:
    gate = DSelectK(num_tasks=4, num_experts=8, k=2)
    assert gate.codes_changed() == 0
    gate.finalize()
    assert gate.codes_changed() == 0, "rounding does not count as a change"
    with torch.no_grad():
        gate.z[0, 0] *= -1
        gate.z[3, 1, 2] *= -1
    assert gate.codes_changed() == 2


def test_dselect_k_state_dict_restores_initial_codes_and_gamma() -> None:
    gate = DSelectK(num_tasks=4, num_experts=8, k=2)
    gate.anneal(0.25)
    with torch.no_grad():
        gate.z[0, 0] *= -1
    restored = DSelectK(num_tasks=4, num_experts=8, k=2)
    restored.load_state_dict(gate.state_dict())
    assert restored.codes_changed() == 1
    assert float(restored.gamma) == 0.25
    assert torch.equal(restored(), gate())
