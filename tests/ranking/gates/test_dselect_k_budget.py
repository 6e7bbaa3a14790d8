"""``DSelectK.restrict``, which limits a gate to some of its experts and so enforces an experts budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranking.gates import DSelectK, smooth_step

SetCodes = Callable[[DSelectK, list[list[int]]], None]


@st.composite
def experts_to_keep(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Draw the number of experts n and a nonempty list of distinct experts in random order."""
    n = draw(st.sampled_from([1, 2, 3, 5, 6, 7, 8, 12, 16, 33]))
    return n, draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))


def num_bits(n: int) -> int:
    return (n - 1).bit_length()


@given(experts_to_keep())
def test_dselect_k_restrict_maps_codes_onto_all_kept_experts(case: tuple[int, list[int]]) -> None:
    n, kept = case
    codes = 2 ** num_bits(n)
    gate = DSelectK(num_tasks=codes, num_experts=n, k=1)
    gate.restrict(kept)
    with torch.no_grad():
        for code in range(codes):
            gate.z[code, 0] = torch.tensor([1.0 if code >> j & 1 else -1.0 for j in range(num_bits(n))])
    weights = gate()
    assert torch.equal(weights.sum(-1), torch.ones(codes))
    assert sorted(set(weights.argmax(-1).tolist())) == sorted(kept)
    assert gate.selection().experts_used == sorted(kept)


@given(experts_to_keep(), st.integers(0, 10**6))
def test_dselect_k_restrict_per_example_gate_selects_kept_experts_only(case: tuple[int, list[int]], seed: int) -> None:
    n, kept = case
    m = num_bits(n)
    gate = DSelectK(num_tasks=2, num_experts=n, k=1, input_size=max(m, 1))
    with torch.no_grad():
        gate.w.copy_(torch.eye(m, max(m, 1)))
    gate.restrict(kept)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=max(m, 1))))
    torch.manual_seed(seed)
    x = torch.cat([signs, torch.randn(20, max(m, 1)), torch.zeros(1, max(m, 1))])
    for _ in range(2):
        weights = gate(x)
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(x), 2))
        torch.testing.assert_close(weights[..., kept].sum(-1), torch.ones(len(x), 2))
        gate.finalize()
    assert sorted(set(gate(x).argmax(-1).flatten().tolist())) == sorted(kept)


@given(experts_to_keep(), st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 10.0]), st.sampled_from([0.1, 0.5, 3.0]))
def test_dselect_k_restrict_leaves_low_code_variables_trainable(
    case: tuple[int, list[int]], seed: int, gamma: float, spread: float
) -> None:
    n, kept = case
    torch.manual_seed(seed)
    gate = DSelectK(num_tasks=4, num_experts=n, k=min(2, n), gamma=gamma)
    with torch.no_grad():
        gate.z.normal_(std=spread * gamma)
    gate.restrict(kept)
    low = num_bits(len(kept))
    s = smooth_step(gate.z.detach(), gamma)
    assert ((s[..., :low] > 0.049) & (s[..., :low] < 0.951)).all()
    assert torch.equal(s[..., low:], torch.zeros_like(s[..., low:])), (
        "the other variables lie outside the fractional region"
    )
    assert bool(gate.converged().all()) == (low == 0)
    if n > 1:
        (gate() * torch.randn(n)).sum().backward()
        assert gate.z.grad is not None
        assert gate.z.grad.isfinite().all()
        assert gate.z.grad[..., low:].count_nonzero() == 0
        assert gate.z.grad[..., :low].ne(0).all()


@pytest.mark.parametrize("n", [5, 8, 12])
def test_dselect_k_restrict_keeps_preference_for_kept_expert(n: int, set_codes: SetCodes) -> None:
    kept = [4, 1, 3]
    gate = DSelectK(num_tasks=3, num_experts=n, k=1)
    set_codes(gate, [[expert] for expert in kept])
    with torch.no_grad():
        gate.z.mul_(0.4)  # S = 0.972, inside the fractional region
    gate.restrict(kept)
    assert gate.codes().flatten().tolist() == kept
    for task, expert in enumerate(kept):
        assert float(gate()[task, expert].detach()) > 0.85
    gate.finalize()
    assert gate().argmax(-1).tolist() == kept


def test_dselect_k_restrict_keeps_relative_probabilities_of_kept_experts() -> None:
    gate = DSelectK(num_tasks=1, num_experts=4, k=1)
    with torch.no_grad():
        gate.z.copy_(torch.tensor([[[0.25, 0.1]]]))  # S = 0.84375 and 0.648
    gate.restrict([0, 2])  # r = 0.15625·0.352 and 0.15625·0.648: code 1, for expert 2, has 0.648 of the two
    expected = torch.tensor([[0.352, 0.0, 0.648, 0.0]])
    torch.testing.assert_close(gate().detach(), expected, rtol=0.0, atol=1e-6)


def test_dselect_k_restrict_to_one_expert_converges_immediately() -> None:
    gate = DSelectK(num_tasks=4, num_experts=6, k=2)
    gate.restrict([3])
    assert gate.converged().all()
    assert gate.selection().tasks == {str(t): {3: 1.0} for t in range(4)}
    assert torch.equal(gate()[:, 3], torch.ones(4))


def test_dselect_k_restrict_distributes_surplus_codes_over_kept_experts() -> None:
    gate = DSelectK(num_tasks=8, num_experts=8, k=1)
    gate.restrict([0, 2, 3, 5, 7])
    with torch.no_grad():
        gate.z.copy_(torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3))).unsqueeze(1))
    assert gate().detach().sum(0).tolist() == [2, 0, 2, 2, 0, 1, 0, 1], "experts 5 and 7 have one code each"


@pytest.mark.parametrize("second", [[5, 2], [7], [2, 4, 7]])
def test_dselect_k_restrict_twice_selects_from_second_set_only(second: Sequence[int]) -> None:
    gate = DSelectK(num_tasks=20, num_experts=8, k=2)
    gate.restrict([2, 4, 5, 7])
    gate.restrict(second)
    gate.finalize()
    assert set(gate.selection().experts_used) <= set(second)
    torch.testing.assert_close(gate()[:, list(second)].sum(-1), torch.ones(20))


def test_dselect_k_anneal_after_restrict_keeps_selected_experts() -> None:
    gate = DSelectK(num_tasks=5, num_experts=8, k=2, gamma=1.0)
    gate.restrict([1, 6])
    before = gate.selectors().argmax(-1)
    gate.anneal(1e-3)
    assert torch.equal(gate.selectors().argmax(-1), before)
    assert float(gate()[:, [1, 6]].sum().detach()) == pytest.approx(5.0)


@pytest.mark.parametrize("surplus", ["random", "penalty"])
def test_dselect_k_restrict_assigns_every_code_to_a_kept_expert(surplus: str) -> None:
    gate = DSelectK(num_tasks=20, num_experts=5, k=2, surplus=surplus)  # type: ignore[arg-type]
    gate.restrict([0, 2, 4])
    torch.testing.assert_close(gate()[:, [0, 2, 4]].sum(-1), torch.ones(20))


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize("experts", [[], [0, 0], [-1], [5], [1, 5], [0, 1, 2, 3, 4, 4]], ids=str)
def test_dselect_k_restrict_to_invalid_experts_raises_and_keeps_weights(per_example: bool, experts: list[int]) -> None:
    gate = DSelectK(num_tasks=3, num_experts=5, k=2, input_size=4 if per_example else None)
    x = torch.randn(6, 4)
    before = gate(x)
    with pytest.raises(ValueError, match="pass distinct numbers from 0 to 4"):
        gate.restrict(experts)
    assert torch.equal(gate(x), before)


def test_dselect_k_codes_changed_ignores_changes_caused_by_restrict(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=1, num_experts=8, k=2)
    set_codes(gate, [[0, 3]])
    gate.initial_codes.copy_(gate._rounded_codes())
    assert gate.codes_changed() == 0
    set_codes(gate, [[0, 5]])  # The second selector changes its expert.
    assert gate.codes_changed() == 1
    gate.restrict([1, 2])  # Both selectors lose their expert.
    assert gate.codes_changed() == 1
    first, second = gate._rounded_codes()[0].tolist()
    set_codes(gate, [[1 - first % 2, second]])  # The first selector changes its expert after the restriction.
    assert gate.codes_changed() == 2
