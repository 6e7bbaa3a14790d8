"""Smooth-step function of DSelect-k (section 3.1.3) and its inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ranking.gates import smooth_step
from ranking.gates.smooth_step import inverse_smooth_step

GAMMAS = [1e-3, 0.3, 1.0, 10.0]


def polynomial(t: Tensor, gamma: float) -> Tensor:
    """Compute S(t) inside the fractional region with the formula of the paper."""
    return -2 / gamma**3 * t**3 + 3 / (2 * gamma) * t + 0.5


@pytest.mark.parametrize("gamma", GAMMAS)
def test_smooth_step_inside_fractional_region_equals_published_cubic(gamma: float) -> None:
    t = torch.linspace(-gamma / 2, gamma / 2, 1001, dtype=torch.float64)
    torch.testing.assert_close(smooth_step(t, gamma), polynomial(t, gamma), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_smooth_step_outside_fractional_region_is_exactly_zero_or_one(gamma: float) -> None:
    beyond = gamma / 2 * torch.tensor([1.0, 1.0 + 1e-6, 1.5, 100.0, 1e30])
    assert torch.equal(smooth_step(beyond, gamma), torch.ones(5))
    assert torch.equal(smooth_step(-beyond, gamma), torch.zeros(5))


def test_smooth_step_of_zero_is_one_half() -> None:
    assert float(smooth_step(torch.tensor(0.0), 1.0)) == 0.5


def test_smooth_step_is_increasing() -> None:
    values = smooth_step(torch.linspace(-0.6, 0.6, 2001, dtype=torch.float64), 1.0)
    assert (values.diff() >= 0).all()
    assert (values.diff()[200:-200] > 0).all()


def test_smooth_step_accepts_gamma_as_tensor() -> None:
    t = torch.linspace(-1.0, 1.0, 21)
    assert torch.equal(smooth_step(t, torch.tensor(0.5)), smooth_step(t, 0.5))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.floats(2**-10, 2**10, width=32))
def test_smooth_step_in_float32_stays_in_unit_interval(t: float, gamma: float) -> None:
    for scale in (1.0, gamma / 4):  # The second scale puts more values inside the region.
        value = smooth_step(torch.tensor(t * scale, dtype=torch.float32), gamma)
        assert 0.0 <= float(value) <= 1.0


def test_smooth_step_in_float32_near_edges_stays_in_unit_interval() -> None:
    near = torch.tensor(1.0) - torch.arange(200_000) * 2.0**-24  # Every float32 value just below 1.
    for values in (smooth_step(near - 0.5, 1.0), smooth_step(0.5 - near, 1.0)):
        assert float(values.min()) >= 0.0
        assert float(values.max()) <= 1.0


@pytest.mark.parametrize("gamma", [0.3, 1.0, 10.0])
def test_smooth_step_passes_gradcheck(gamma: float) -> None:
    t = gamma * torch.tensor([-2.0, -0.51, -0.49, -0.3, 0.0, 0.1, 0.499, 0.6, 5.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: smooth_step(t, gamma), t.requires_grad_())


@pytest.mark.parametrize("gamma", GAMMAS)
def test_smooth_step_gradient_at_edges_and_outside_is_zero(gamma: float) -> None:
    t = torch.tensor([-1e30, -1e4, -gamma / 2, gamma / 2, 1e4, 1e30, 3e38], requires_grad=True)
    (gradient,) = torch.autograd.grad(smooth_step(t, gamma).sum(), t)
    assert torch.equal(gradient, torch.zeros(7))


def test_smooth_step_slope_at_zero_equals_published_value() -> None:
    t = torch.zeros(1, requires_grad=True)
    (gradient,) = torch.autograd.grad(smooth_step(t, 4.0).sum(), t)
    assert float(gradient) == pytest.approx(3 / (2 * 4.0))


# Inverse.


@pytest.mark.parametrize("gamma", GAMMAS)
def test_inverse_smooth_step_inverts_smooth_step(gamma: float) -> None:
    s = torch.linspace(0.0, 1.0, 501, dtype=torch.float64)
    t = inverse_smooth_step(s, gamma)
    torch.testing.assert_close(smooth_step(t, gamma), s, rtol=0.0, atol=1e-12)
    assert float(t.abs().max()) <= gamma / 2 * (1 + 1e-12)
    assert (t.diff() > 0).all()


def test_inverse_smooth_step_of_ends_and_middle_matches_hand_values() -> None:
    t = inverse_smooth_step(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), 4.0)
    assert t.tolist() == pytest.approx([-2.0, 0.0, 2.0])
