"""Dropout of units."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 2**16
"""Number of values of the 16 random bits that decide about a unit."""


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Set units to 0 at random and scale the others, so that the mean is unchanged (Srivastava et al. 2014).

    On a CPU, one random number of 64 bits decides about four units, and the probability is rounded to a multiple of
    2⁻¹⁶, which may be 0. ``torch.nn.functional.dropout`` draws a number for each and takes four times as long, forward
    and backward.

    Args:
        x: units, of any shape.
        probability: probability of setting a unit to 0, below 1.
        training: whether to drop units at all.
    """
    if not training or not probability:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability, training)
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
    return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
