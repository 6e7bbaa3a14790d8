"""Tests of ``ranking.model.dropout``: rate, mean, gradient and reproducibility."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranking.model.dropout import dropout


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.5, 0.9])
def test_share_of_dropped_units_is_the_probability_and_the_mean_stays(probability: float) -> None:
    torch.manual_seed(0)
    x = dropout(torch.ones(1000, 1001), probability, training=True)
    error = (probability * (1 - probability) / x.numel()) ** 0.5
    assert (x == 0).double().mean().item() == pytest.approx(probability, abs=5 * error + 2**-17)
    assert x.max().item() == pytest.approx(1 / (1 - probability), rel=1e-3)
    assert x.double().mean().item() == pytest.approx(1, abs=5 * error / (1 - probability))


def test_neighbors_that_share_a_random_number_are_independent() -> None:
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(200_000, 4), 0.3, training=True) == 0).double()
    assert torch.corrcoef(dropped.T).fill_diagonal_(0).abs().max() < 0.012
    assert (dropped.mean(0) - 0.3).abs().max() < 0.006, "each of the four numbers has the same distribution"


def test_gradient_is_that_of_the_kept_units() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 5, requires_grad=True)
    y = dropout(x, 0.4, training=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach() / x.detach())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.floats(0, 0.99999999, allow_subnormal=False))
def test_any_shape_and_probability_keeps_or_scales_each_unit(shape: list[int], probability: float) -> None:
    y = dropout(torch.ones(shape, dtype=torch.bfloat16), probability, training=True)
    assert (list(y.shape), y.dtype) == (shape, torch.bfloat16)
    assert y.isfinite().all()
    assert len(y[y != 0].unique()) <= 1


def test_draws_follow_the_seed() -> None:
    draws = [torch.manual_seed(seed) and dropout(torch.ones(99), 0.5, training=True) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_without_training_or_probability_units_are_unchanged() -> None:
    x = torch.randn(4)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
