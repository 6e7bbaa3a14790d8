"""Per-example DSelect-k gate, which selects at most k of n experts per task and example (section 3.2)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ranking.errors import NotConvergedError
from ranking.gates import DSelectK, smooth_step

EXPERT_COUNTS = [1, 2, 3, 5, 6, 7, 8, 12, 16, 33, 64]


def randomize(gate: DSelectK, std: float) -> DSelectK:
    with torch.no_grad():
        gate.w.normal_(std=std)
        gate.g.normal_(std=std)
    return gate


def examples(rows: int, width: int) -> Tensor:
    """Return random examples and edge cases: zeros, unit vectors, large, huge and tiny values."""
    x = torch.randn(rows, width)
    extreme = torch.cat([torch.full((1, width), size) for size in (1e-30, 1e30, -1e30, 1e15)])
    return torch.cat([x, torch.zeros(2, width), -torch.zeros(1, width), torch.eye(width), x[:3] * 1e6, extreme])


# Initialization.


def test_per_example_dselect_k_initial_codes_of_standardized_examples_are_small() -> None:
    gate = DSelectK(num_tasks=10, num_experts=8, k=2, gamma=4.0, input_size=100)
    z = gate.variables(torch.randn(500, 100))
    assert z.shape == (500, 10, 2, 3)
    assert 0.0 < float(z.detach().std()) < 0.02 * 4.0
    torch.testing.assert_close(gate(torch.randn(5, 100)), torch.full((5, 10, 8), 1 / 8), rtol=0.0, atol=0.05)


def test_per_example_dselect_k_initial_selector_weights_are_equal() -> None:
    assert torch.equal(DSelectK(3, 8, 2, input_size=4).g.detach(), torch.zeros(3, 2, 4))


# Forward pass.


def test_per_example_dselect_k_weights_of_four_experts_match_hand_calculation() -> None:
    """The static example with z⁽¹⁾ = x, z⁽²⁾ = (−4x₁, −10x₂) and α = (4 ln 3 · x₁, 0), and x = 0."""
    gate = DSelectK(num_tasks=1, num_experts=4, k=2, input_size=2)
    with torch.no_grad():
        gate.w.copy_(torch.tensor([[[[1.0, 0.0], [0.0, 1.0]], [[-4.0, 0.0], [0.0, -10.0]]]]))
        gate.g.copy_(torch.tensor([[[4 * math.log(3.0), 0.0], [0.0, 0.0]]]))
    weights, selectors = gate.route(torch.tensor([[0.25, -0.1], [0.0, 0.0]]))
    first = [0.15625 * 0.648, 0.84375 * 0.648, 0.15625 * 0.352, 0.84375 * 0.352]  # S(¼) = 0.84375, S(−0.1) = 0.352
    second = [0.0, 0.0, 1.0, 0.0]  # z₁ = −1, z₂ = 1
    assert selectors is not None
    torch.testing.assert_close(selectors[0, 0], torch.tensor([first, second]))
    mixed = [0.75 * a + 0.25 * b for a, b in zip(first, second, strict=True)]
    torch.testing.assert_close(weights, torch.tensor([[mixed], [[0.25] * 4]]))


def test_per_example_dselect_k_weights_equal_static_gate_with_same_codes() -> None:
    gate = randomize(DSelectK(num_tasks=3, num_experts=6, k=2, input_size=4), 0.2)
    x = torch.randn(5, 4)
    for row, weights in zip(x, gate(x), strict=True):
        static = DSelectK(num_tasks=3, num_experts=6, k=2)
        with torch.no_grad():
            static.z.copy_(gate.w @ row)
            static.alpha.copy_(gate.g @ row)
        torch.testing.assert_close(weights, static())


@given(
    st.sampled_from(EXPERT_COUNTS), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 1.0, 100.0])
)
def test_per_example_dselect_k_weights_are_distribution_of_at_most_k_experts_once_final(
    n: int, k: int, seed: int, std: float
) -> None:
    torch.manual_seed(seed)
    k = min(k, n)
    gate = randomize(DSelectK(num_tasks=3, num_experts=n, k=k, input_size=4), std)
    x = examples(20, 4)
    for _ in range(2):
        weights = gate(x)
        assert weights.isfinite().all()
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(x), 3))
        gate.finalize()
    weights, selectors = gate.route(x)
    assert int((weights > 0).sum(-1).max()) <= k
    assert selectors is not None
    assert ((selectors == 0) | (selectors == 1)).all()


# Gradients.


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("n", [1, 5, 8])
def test_per_example_dselect_k_gradients_are_finite(finalized: bool, n: int) -> None:
    gate = randomize(DSelectK(num_tasks=3, num_experts=n, k=min(2, n), input_size=4), 0.5)
    if finalized:
        gate.finalize()
    x = examples(20, 4).requires_grad_()
    (gate(x) * torch.randn(n)).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    for parameter in gate.parameters():
        if parameter.requires_grad and parameter.numel():
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()


def test_per_example_dselect_k_initial_gradients_are_nonzero() -> None:
    gate = DSelectK(num_tasks=3, num_experts=6, k=2, input_size=4)
    (gate(torch.randn(9, 4)) * torch.randn(3, 6)).sum().backward()
    for parameter in (gate.w, gate.g):
        assert parameter.grad is not None
        assert (parameter.grad != 0).all()


def test_per_example_dselect_k_freeze_alpha_disables_and_enables_gradient() -> None:
    gate = DSelectK(num_tasks=2, num_experts=8, k=2, input_size=4)
    for frozen in (True, False):
        gate.freeze_alpha(frozen)
        (gate(torch.randn(5, 4)) * torch.randn(8)).sum().backward()
        assert (gate.g.grad is None) == frozen


# Finalization.


def test_per_example_dselect_k_at_tiny_gamma_is_not_converged() -> None:
    gate = randomize(DSelectK(num_tasks=1, num_experts=8, k=1, input_size=4), 1.0)
    gate.anneal(1e-6)
    assert int((gate(torch.zeros(1, 4)) > 0).sum()) == 8
    assert gate.converged().tolist() == [False]
    with pytest.raises(NotConvergedError, match="the per-example gate has not converged"):
        gate.selection(x=torch.randn(3, 4))


def test_per_example_dselect_k_finalized_gate_uses_unit_step_with_one_at_zero() -> None:
    gate = DSelectK(num_tasks=1, num_experts=4, k=1, input_size=2)
    with torch.no_grad():
        gate.w.copy_(torch.eye(2).view(1, 1, 2, 2))
    gate.finalize()
    x = torch.tensor([[-1e-30, -5.0], [0.0, -1.0], [-1.0, 0.0], [0.0, 0.0], [1e-38, 3e38]])
    assert gate(x)[:, 0].argmax(1).tolist() == [0, 1, 2, 3, 3]
    assert torch.equal(gate(x).sum(-1), torch.ones(5, 1))


def test_per_example_dselect_k_finalize_rounds_codes_to_nearest_binary_code() -> None:
    gate = randomize(DSelectK(num_tasks=4, num_experts=12, k=2, input_size=4), 0.4)
    x = torch.randn(200, 4)
    z = gate.variables(x).detach()
    assert gate.finalize() == 0, "finalize counts forced static selectors only"
    selectors = gate.route(x).selectors
    assert selectors is not None
    code = ((z >= 0) * torch.tensor([1, 2, 4, 8])).sum(-1)
    assert torch.equal(selectors.argmax(-1), torch.where(code < 12, code, code - 12))


def test_per_example_dselect_k_finalize_keeps_weights_of_examples_with_binary_codes() -> None:
    gate = randomize(DSelectK(num_tasks=4, num_experts=12, k=2, input_size=4), 3.0)
    x = torch.randn(400, 4)
    s = smooth_step(gate.variables(x).detach(), gate.gamma)
    binary = ((s == 0) | (s == 1)).flatten(1).all(1)
    assert 5 <= int(binary.sum()) < 400
    before = gate(x)
    gate.finalize()
    after = gate(x)
    assert torch.equal(after[binary], before[binary])
    assert not torch.equal(after, before)
    gate.finalize()
    assert torch.equal(gate(x), after)


def test_per_example_dselect_k_after_finalize_only_selector_weights_have_gradient() -> None:
    gate = randomize(DSelectK(num_tasks=2, num_experts=8, k=2, input_size=4), 0.5)
    gate.finalize()
    (gate(torch.randn(9, 4)) * torch.randn(8)).sum().backward()
    assert gate.w.grad is None
    assert gate.g.grad is not None
    assert gate.g.grad.ne(0).any()


def test_per_example_dselect_k_selection_averages_examples_and_lists_every_expert() -> None:
    gate = randomize(DSelectK(num_tasks=2, num_experts=5, k=1, input_size=1), 0.0)
    with torch.no_grad():
        gate.w.copy_(torch.tensor([[[[1.0], [-1.0], [-1.0]]], [[[-1.0], [-1.0], [1.0]]]]))
    gate.finalize()
    x = torch.tensor([[1.0], [2.0], [-1.0], [3.0]])  # Task a: codes 1 1 6 1, so experts 1 1 1 1; b: 4 4 3 4.
    selection = gate.selection(["a", "b"], x)
    assert selection.tasks == {
        "a": {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0, 4: 0.0},
        "b": {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.25, 4: 0.75},
    }
    assert selection.per_example


def test_per_example_dselect_k_with_one_expert_is_converged_and_selects_it() -> None:
    gate = DSelectK(num_tasks=2, num_experts=1, k=1, input_size=3)
    assert gate.converged().all()
    assert torch.equal(gate(torch.randn(4, 3)), torch.ones(4, 2, 1))
    gate.finalize()
    assert torch.equal(gate(torch.randn(4, 3)), torch.ones(4, 2, 1))


@pytest.mark.parametrize("n", [4, 8])
def test_per_example_dselect_k_every_expert_is_selectable(n: int) -> None:
    m = n.bit_length() - 1
    gate = DSelectK(num_tasks=1, num_experts=n, k=1, input_size=m)
    with torch.no_grad():
        gate.w.copy_(torch.eye(m).view(1, 1, m, m))
    gate.finalize()
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=m)))
    assert sorted(gate(signs)[:, 0].argmax(1).tolist()) == list(range(n))
