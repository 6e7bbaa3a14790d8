"""The smooth-step function S of DSelect-k (arXiv 2106.03760, section 3.1.3)."""

from __future__ import annotations

import torch
from torch import Tensor


def smooth_step(t: Tensor, gamma: float | Tensor) -> Tensor:
    """S(t): 0 below −γ/2, 1 above γ/2, a cubic between; elementwise, continuously differentiable.

    The paper's −2t³/γ³ + 3t/2γ + ½ is u²(3 − 2u) with u = t/γ + ½. In this form the value is exactly 0 or 1 outside
    the fractional region in float arithmetic, and clamping before the polynomial keeps gradients finite there.
    """
    u = (t / gamma + 0.5).clamp(0.0, 1.0)
    return u * u * (3.0 - 2.0 * u)


def inverse_smooth_step(s: Tensor, gamma: float | Tensor) -> Tensor:
    """The t in [−γ/2, γ/2] with S(t) = s, for s in [0, 1]; elementwise."""
    return -gamma * torch.sin(torch.asin(1.0 - 2.0 * s) / 3.0)
