"""Top-k gate: softmax(KeepTopK(Ax + b)) (Shazeer et al., equations 3–5)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranking.gates import TopK


def with_bias(gate: TopK, bias: list[list[float]]) -> TopK:
    with torch.no_grad():
        gate.bias.copy_(torch.tensor(bias))
    return gate


def test_top_k_static_weights_match_hand_calculation() -> None:
    gate = with_bias(TopK(num_tasks=2, num_experts=4, k=2), [[0.0, math.log(3.0), -1.0, -1e-3], [5.0, 4.0, 3.0, 4.5]])
    low = 1 / (1 + math.exp(-0.5))  # logits 5 and 4.5
    expected = [[0.25, 0.75, 0.0, 0.0], [low, 0.0, 0.0, 1 - low]]
    torch.testing.assert_close(gate().detach(), torch.tensor(expected))


def test_top_k_per_example_weights_match_hand_calculation() -> None:
    """Logits Ax + b = (x₁, 2x₂, 1)."""
    gate = with_bias(TopK(num_tasks=1, num_experts=3, k=2, input_size=2), [[0.0, 0.0, 1.0]])
    with torch.no_grad():
        gate.weight.copy_(torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]]))
    x = torch.tensor([[1.0, math.log(2.0) / 2], [0.0, 2.0], [2.0, 3.0]])  # logits (1, ln 2, 1), (0, 4, 1), (2, 6, 1)
    expected = [
        [0.5, 0.0, 0.5],
        [0.0, 1 / (1 + math.exp(-3.0)), 1 / (1 + math.exp(3.0))],
        [1 / (1 + math.exp(4.0)), 1 / (1 + math.exp(-4.0)), 0.0],
    ]
    torch.testing.assert_close(gate(x)[:, 0].detach(), torch.tensor(expected))


@given(st.sampled_from([1, 2, 3, 5, 8, 12, 33]), st.integers(1, 4), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_top_k_keeps_exactly_the_k_largest_logits(n: int, k: int, seed: int, per_example: bool, noise: bool) -> None:
    torch.manual_seed(seed)
    k = min(k, n)
    gate = TopK(num_tasks=3, num_experts=n, k=k, input_size=4 if per_example else None, noise=noise)
    x = torch.randn(6, 4)
    for training in (True, False):
        weights = gate.train(training)(x)
        assert torch.equal((weights > 0).sum(-1), torch.full(weights.shape[:-1], k))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    logits = torch.einsum("bp,tnp->btn", x, gate.weight) + gate.bias if per_example else gate.bias
    smallest_kept = torch.where(weights > 0, logits, torch.inf).amin(-1)
    assert (torch.where(weights > 0, -torch.inf, logits).amax(-1) <= smallest_kept).all()


def test_top_k_of_equal_logits_keeps_exactly_k() -> None:
    gate = with_bias(TopK(num_tasks=1, num_experts=5, k=3), [[1.0] * 5])
    row = gate()[0].detach()
    assert int((row > 0).sum()) == 3
    torch.testing.assert_close(row[row > 0], torch.full((3,), 1 / 3))


def test_top_k_initial_experts_differ_between_tasks() -> None:
    assert len({tuple(row.nonzero().flatten().tolist()) for row in TopK(num_tasks=40, num_experts=8, k=2)()}) > 5


def test_top_k_gradient_reaches_kept_logits_only() -> None:
    gate = with_bias(TopK(num_tasks=1, num_experts=4, k=2), [[1.0, 3.0, 2.0, 0.0]])
    (gate() * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert gate.bias.grad is not None
    assert gate.bias.grad[0].ne(0).tolist() == [False, True, True, False]


# Noise.


@pytest.mark.parametrize("size", [None, 4])
def test_top_k_noise_changes_weights_in_training_only(size: int | None) -> None:
    gate, x = TopK(num_tasks=4, num_experts=8, k=2, input_size=size, noise=True), torch.randn(5, 4)
    assert not torch.equal(gate.train()(x), gate.train()(x))
    without_noise = TopK(num_tasks=4, num_experts=8, k=2, input_size=size)
    without_noise.load_state_dict(gate.state_dict(), strict=False)
    assert torch.equal(gate.eval()(x), without_noise(x))
    assert torch.equal(without_noise.train()(x), without_noise.train()(x))


def test_top_k_noise_scale_is_softplus_of_its_affine_map() -> None:
    """With k = n = 2 the log of the weights' ratio is b₁ − b₂ + ε₁σ₁ − ε₂σ₂: normal with variance σ₁² + σ₂²."""
    gate = with_bias(TopK(num_tasks=1, num_experts=2, k=2, input_size=1, noise=True), [[0.7, 0.2]])
    with torch.no_grad():
        gate.weight.zero_()
        gate.noise_bias.copy_(torch.tensor([[0.5, -1.0]]))
        gate.noise_weight.copy_(torch.tensor([[[0.0], [1.5]]]))
        weights = gate.double()(torch.full((200_000, 1), 2.0))[:, 0]
    difference = weights[:, 0].log() - weights[:, 1].log()
    first, second = math.log1p(math.exp(0.5)), math.log1p(math.exp(2.0))  # softplus(0.5) and softplus(−1 + 1.5·2)
    assert float(difference.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(difference.var()) == pytest.approx(first**2 + second**2, rel=0.02)


def test_top_k_noise_parameters_have_gradient() -> None:
    gate = TopK(num_tasks=2, num_experts=4, k=3, input_size=3, noise=True)
    (gate(torch.randn(6, 3)) * torch.randn(4)).sum().backward()
    for parameter in (gate.noise_bias, gate.noise_weight):
        assert parameter.grad is not None
        assert parameter.grad.ne(0).any()


# Selection.


def test_top_k_is_always_converged_and_selection_excludes_noise() -> None:
    gate = with_bias(TopK(num_tasks=1, num_experts=4, k=2, noise=True), [[1.0, 3.0, 2.0, 0.0]])
    assert not gate.needs_finalize
    assert gate.converged().all()
    weights = gate.eval()()[0].detach()
    gate.train().anneal(0.1)
    assert gate.finalize() == 0
    (selected,) = gate.selection().tasks.values()
    assert selected == {1: float(weights[1]), 2: float(weights[2])}, "the selection excludes the noise"
