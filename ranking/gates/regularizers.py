"""Penalties on gates as functions of ``Routing``; each returns a scalar to be weighted and added to the loss.

Tensors of a static gate do not have a batch dimension. Penalties are sums over selectors and tasks, as published, and
means over the batch, so that the meaning of a weight does not depend on the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIN_TOTAL = 1e-3
"""Lower bound of Σr in the surplus penalty, where 1/Σr would be infinite and its gradient NaN."""


def entropy(selectors: Tensor) -> Tensor:
    """Return Ω: Σ over tasks and selectors of h(r), mean over the batch (DSelect-k, sections 3.1.3 and 3.2), in nats.

    Args:
        selectors: distributions of the selectors [..., tasks, k, experts].
    """
    return -(selectors * selectors.clamp(min=1e-12).log()).sum((-3, -2, -1)).mean()


def overlap(selectors: Tensor) -> Tensor:
    """Return Σ over tasks and pairs i < j of ⟨rᵢ, rⱼ⟩, mean over the batch: the agreement of a task's selectors.

    Args:
        selectors: distributions of the selectors [..., tasks, k, experts].
    """
    squared_sum = selectors.sum(-2).square().sum((-2, -1))
    sum_of_squares = selectors.square().sum((-3, -2, -1))
    return ((squared_sum - sum_of_squares) / 2).mean()


def surplus(selectors: Tensor) -> Tensor:
    """Return Σ over tasks and selectors of 1/Σₑ r, mean over the batch (DSelect-k, appendix B.2); 1/Σ is clamped.

    Args:
        selectors: distributions of the selectors [..., tasks, k, experts]; codes without an expert reduce their sum.
    """
    return selectors.sum(-1).clamp(min=MIN_TOTAL).reciprocal().sum((-2, -1)).mean()


def expected_union(selectors: Tensor, costs: Tensor) -> Tensor:
    """Return Σₑ cₑ(1 − Π over tasks and selectors of (1 − r)), the expected cost of the experts that any task uses.

    Selectors are treated as independent draws; the value is exact once every selector is one-hot. Mean over the batch.

    Args:
        selectors: distributions of the selectors [..., tasks, k, experts].
        costs: cost of each expert [experts].
    """
    unused = torch.ones_like(selectors[..., 0, 0, :])
    for r in selectors.flatten(-3, -2).unbind(-2):  # T·k factors; the backward pass of prod would synchronize a GPU.
        unused = unused * (1.0 - r)
    return ((1.0 - unused) * costs).sum(-1).mean()


def importance(weights: Tensor) -> Tensor:
    """Return CV(I)², where I is the sum of each expert's weights over batch and tasks (Shazeer et al., equation 7).

    Krishnamurthy et al. (equation 7) omit the square; CV itself has no gradient where the load is even.

    Args:
        weights: gate weights [..., tasks, experts].
    """
    load = weights.flatten(0, -2).sum(0)
    return load.var(correction=0) / load.mean().square().clamp(min=1e-12)


def sample_similarity(weights: Tensor, x: Tensor, same: float, different: float) -> Tensor:
    """Return L_s, which routes similar examples to the same expert and dissimilar ones to different experts.

    Krishnamurthy et al., equations 8–10, with the squared Euclidean distance, summed over tasks. Examples do not
    receive a gradient, because the penalty must change the routing and not the examples.

    Args:
        weights: gate weights p(e|x) [batch, tasks, experts].
        x: examples [batch, width].
        same: weight β_s.
        different: weight β_d.
    """
    rows, _, experts = weights.shape
    with torch.autocast(weights.device.type, enabled=False):
        p = weights.transpose(0, 1)  # [tasks, batch, experts]
        x = x.detach().to(p)
        distance = torch.cdist(x, x).square()
        together = p @ p.mT
        sums = p.sum(-1)
        apart = sums.unsqueeze(-1) * sums.unsqueeze(-2) - together
        s = same / experts * together
        d = different / max(experts * experts - experts, 1) * apart
        return ((s - d) * distance).sum() / max(rows * rows - rows, 1)
