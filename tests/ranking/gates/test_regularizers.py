"""Penalties on gates, each compared with a hand calculation or with plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ranking.gates import DSelectK, regularizers
from ranking.gates.regularizers import entropy, expected_union, importance, overlap, sample_similarity, surplus

SetCodes = Callable[[DSelectK, list[list[int]]], None]


def one_hot(codes: list[list[int]], experts: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(codes), experts).double()


def random_distributions(*shape: int) -> Tensor:
    """Return random distributions along the last dimension, float64."""
    return torch.softmax(torch.randn(*shape, dtype=torch.float64), -1)


def selectors_of(gate: DSelectK) -> Tensor:
    selectors = gate.route().selectors
    assert selectors is not None
    return selectors


# All penalties.

PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "entropy": entropy,
    "overlap": overlap,
    "surplus": surplus,
    "expected_union": lambda r: expected_union(r, torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=r.dtype)),
    "importance": lambda r: importance(r[..., 0, :]),
    "sample_similarity": lambda r: sample_similarity(r[..., 0, :], EXAMPLES.to(r.dtype), 0.3, 0.2),
}
EXAMPLES = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5], [1.0, 1.0], [-3.0, 0.0]])


@pytest.fixture(params=PENALTIES)
def penalty(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    return PENALTIES[request.param]


def test_penalty_is_scalar_and_passes_gradcheck(penalty: Callable[[Tensor], Tensor]) -> None:
    r = random_distributions(5, 3, 2, 4).requires_grad_()
    assert penalty(r).shape == ()
    assert torch.autograd.gradcheck(penalty, r)


@pytest.mark.parametrize("name", ["entropy", "overlap", "surplus", "expected_union"])
def test_penalty_of_batch_equals_mean_of_static_penalties(name: str) -> None:
    r = random_distributions(3, 2, 4) * 0.9
    torch.testing.assert_close(PENALTIES[name](r.expand(6, 3, 2, 4)), PENALTIES[name](r))
    other = random_distributions(3, 2, 4) * 0.8
    mean = (PENALTIES[name](r) + PENALTIES[name](other)) / 2
    torch.testing.assert_close(PENALTIES[name](torch.stack([r, other])), mean)


def test_penalty_under_autocast_is_computed_in_float32(penalty: Callable[[Tensor], Tensor]) -> None:
    r = random_distributions(5, 3, 2, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = penalty(r)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, penalty(r))


def test_penalty_of_one_hot_selectors_and_its_gradient_are_finite(penalty: Callable[[Tensor], Tensor]) -> None:
    r = one_hot([[[e % 4, (e + t) % 4] for t in range(3)] for e in range(5)], 4).requires_grad_()  # type: ignore[list-item]
    value = penalty(r)
    value.backward()
    assert value.isfinite()
    assert r.grad is not None
    assert r.grad.isfinite().all()


# Ω, DSelect-k sections 3.1.3 and 3.2.


@pytest.mark.parametrize(("tasks", "k", "n"), [(1, 1, 2), (2, 3, 8), (4, 2, 5)])
def test_entropy_of_uniform_selectors_is_k_ln_n_per_task(tasks: int, k: int, n: int) -> None:
    r = torch.full((tasks, k, n), 1 / n, dtype=torch.float64)
    assert float(entropy(r)) == pytest.approx(tasks * k * math.log(n))


def test_entropy_of_one_hot_selectors_is_zero() -> None:
    assert float(entropy(one_hot([[0, 3], [2, 2]], 4))) == 0.0


def test_entropy_matches_hand_calculation() -> None:
    r = torch.tensor([[[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]])  # ½ ln 2 + 2·¼ ln 4 = 1.5 ln 2, and 0
    assert float(entropy(r)) == pytest.approx(1.5 * math.log(2))


# Overlap.


def test_overlap_of_distinct_selectors_is_zero(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=2, num_experts=8, k=3)
    set_codes(gate, [[0, 1, 2], [7, 3, 4]])
    assert float(overlap(selectors_of(gate)).detach()) == 0.0


def test_overlap_is_one_per_pair_of_equal_selectors(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=3, num_experts=8, k=3)
    set_codes(gate, [[0, 0, 2], [5, 5, 5], [1, 2, 3]])
    assert float(overlap(selectors_of(gate)).detach()) == 1.0 + 3.0


def test_overlap_of_surplus_code_with_its_expert_is_one(set_codes: SetCodes) -> None:
    gate = DSelectK(num_tasks=1, num_experts=5, k=2)
    set_codes(gate, [[5, 0]])
    assert float(overlap(selectors_of(gate)).detach()) == 1.0


def test_overlap_equals_sum_of_pairwise_inner_products() -> None:
    r = random_distributions(3, 4, 5)
    pairs = sum(r[t, i] @ r[t, j] for t in range(3) for j in range(4) for i in range(j))
    torch.testing.assert_close(overlap(r), pairs)


def test_overlap_gradient_step_reduces_overlap() -> None:
    gate = DSelectK(num_tasks=4, num_experts=8, k=2)
    before = overlap(selectors_of(gate))
    before.backward()
    assert gate.z.grad is not None
    with torch.no_grad():
        gate.z.sub_(0.1 * gate.z.grad)
    assert float(overlap(selectors_of(gate)).detach()) < float(before.detach())


# Surplus codes, DSelect-k appendix B.2.


def test_surplus_penalty_matches_hand_calculation() -> None:
    r = torch.tensor([[[0.5, 0.0], [0.25, 0.5]], [[1.0, 0.0], [0.1, 0.1]]])
    assert float(surplus(r)) == pytest.approx(1 / 0.5 + 1 / 0.75 + 1 + 1 / 0.2)


def test_surplus_penalty_without_reachable_expert_is_bounded_with_zero_gradient() -> None:
    r = torch.zeros(1, 1, 3, requires_grad=True)
    value = surplus(r)
    value.backward()
    assert float(value.detach()) == pytest.approx(1000.0)
    assert r.grad is not None
    assert torch.equal(r.grad, torch.zeros(1, 1, 3))


# Expected union.


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=5))
def test_expected_union_of_one_hot_selectors_equals_cost_of_used_experts(codes: list[list[int]]) -> None:
    costs = torch.tensor([1.0, 10.0, 100.0, 1e3, 1e4, 1e5], dtype=torch.float64)
    used = {code for task in codes for code in task}
    assert float(expected_union(one_hot(codes, 6), costs)) == sum(float(costs[e]) for e in used)
    assert float(expected_union(one_hot(codes, 6), torch.ones(6))) == len(used)


def test_expected_union_equals_mean_cost_of_sampled_selections() -> None:
    r, costs, draws = random_distributions(2, 2, 4), torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64), 40_000
    codes = torch.multinomial(r.flatten(0, 1), draws, replacement=True)  # [selectors, draws]
    used = torch.nn.functional.one_hot(codes, 4).amax(0).double()
    cost = used @ costs
    error = float(cost.std()) / math.sqrt(draws)
    assert abs(float(expected_union(r, costs)) - float(cost.mean())) < 5 * error
    assert error < 0.01


# Importance, Shazeer et al., equation 7.


def test_importance_matches_hand_calculation() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    # I = (1.5, 0.5, 0), mean ⅔, variance (25 + 1 + 16)/36/3 = 7/18, so CV² = 7/18 · 9/4
    assert float(importance(weights)) == pytest.approx(7 / 8)
    per_example = torch.stack([weights, weights.flip(-1)])  # I = (1.5, 1, 1.5), mean 4/3, variance 1/18
    assert float(importance(per_example)) == pytest.approx(1 / 18 * 9 / 16)


def test_importance_of_even_load_is_zero_with_zero_gradient() -> None:
    weights = torch.full((6, 2, 4), 0.25, requires_grad=True)
    value = importance(weights)
    value.backward()
    assert float(value.detach()) == 0.0
    assert weights.grad is not None
    assert torch.equal(weights.grad, torch.zeros(6, 2, 4))


# L_s, Krishnamurthy et al., equations 8–10.


def sample_similarity_in_loops(weights: Tensor, x: Tensor, same: float, different: float) -> float:
    """Compute L_s with one loop per sum of the published formula."""
    rows, tasks, m = weights.shape
    p, total = weights.tolist(), 0.0
    for t in range(tasks):
        for i in range(rows):
            for j in range(rows):
                distance = sum((a - b) ** 2 for a, b in zip(x[i].tolist(), x[j].tolist(), strict=True))
                s = sum(same * p[i][t][e] * p[j][t][e] * distance for e in range(m)) / m
                d = sum(different * p[i][t][e] * p[j][t][f] * distance for e in range(m) for f in range(m) if e != f)
                total += s - d / (m * m - m)
    return total / (rows * rows - rows)


@pytest.mark.parametrize(("same", "different"), [(1.0, 0.0), (0.0, 1.0), (0.3, 0.7)])
def test_sample_similarity_equals_loops_over_published_formula(same: float, different: float) -> None:
    weights, x = random_distributions(6, 2, 3), torch.randn(6, 4, dtype=torch.float64)
    penalty = float(sample_similarity(weights, x, same, different))
    assert penalty == pytest.approx(sample_similarity_in_loops(weights, x, same, different), rel=1e-9)


def test_sample_similarity_of_larger_float32_batch_equals_loops() -> None:
    weights, x = random_distributions(40, 1, 3).float(), torch.randn(40, 4)
    assert float(sample_similarity(weights, x, 0.3, 0.7)) == pytest.approx(
        sample_similarity_in_loops(weights, x, 0.3, 0.7), rel=1e-4
    )


def test_sample_similarity_matches_hand_calculation() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])  # 25 apart
    together, apart = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert float(sample_similarity(together, x, 1.0, 1.0)) == pytest.approx(2 * 25 / 2 / 2)  # 1/(N² − N) = 1/M = ½
    assert float(sample_similarity(apart, x, 1.0, 1.0)) == pytest.approx(-2 * 25 / 2 / 2)  # 1/(M² − M) = ½


def test_sample_similarity_gradient_reaches_weights_but_not_examples() -> None:
    weights, x = (
        random_distributions(6, 2, 3).requires_grad_(),
        torch.randn(6, 4, dtype=torch.float64, requires_grad=True),
    )
    sample_similarity(weights, x, 1.0, 1.0).backward()
    assert x.grad is None
    assert weights.grad is not None
    assert weights.grad.ne(0).any()


@pytest.mark.parametrize(("rows", "experts"), [(1, 3), (4, 1), (1, 1)])
def test_sample_similarity_and_importance_of_single_row_or_expert_are_zero(rows: int, experts: int) -> None:
    assert sample_similarity(random_distributions(rows, 2, experts), torch.randn(rows, 4).double(), 0.0, 1.0) == 0.0
    assert regularizers.importance(random_distributions(rows, 2, 1)) == 0.0
