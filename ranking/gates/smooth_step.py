"""The smooth-step function S of DSelect-k (arXiv 2106.03760, section 3.1.3)."""

from __future__ import annotations

import torch
from torch import Tensor


def smooth_step(t: Tensor, gamma: float | Tensor) -> Tensor:
    """Return S(t) elementwise: 0 below −γ/2, 1 above γ/2, a cubic in between; continuously differentiable.

    The paper's −2t³/γ³ + 3t/2γ + ½ equals u²(3 − 2u) with u = t/γ + ½. This form is exactly 0 or 1 outside the
    fractional region in float arithmetic. Clamping before the polynomial keeps gradients finite there.
    """
    u = (t / gamma + 0.5).clamp(0.0, 1.0)
    return u * u * (3.0 - 2.0 * u)


def inverse_smooth_step(s: Tensor, gamma: float | Tensor) -> Tensor:
    """Return the t in [−γ/2, γ/2] with S(t) = s, elementwise for s in [0, 1]."""
    return -gamma * torch.sin(torch.asin(1.0 - 2.0 * s) / 3.0)
