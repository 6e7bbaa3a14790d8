"""Penalties on what gates do, as functions of ``Routing``; each a scalar, to be weighted and added to the loss once.

A static gate's tensors have no batch dimension. Sums over selectors and tasks are published that way; over the batch
we take means, so that a weight means the same whatever the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_REACHABLE = 1e-3
"""Bounds the surplus penalty: at a surplus code 1/Σr would be infinite and its gradient NaN."""


def entropy(selectors: Tensor) -> Tensor:
    """Ω: Σ over tasks and selectors of h(r), mean over the batch (DSelect-k, sections 3.1.3 and 3.2), in nats.

    Args:
        selectors: [..., tasks, k, experts].
    """
    return -(selectors * selectors.clamp(min=1e-12).log()).sum((-3, -2, -1)).mean()


def overlap(selectors: Tensor) -> Tensor:
    """Σ over tasks and pairs i < j of ⟨rᵢ, rⱼ⟩, mean over the batch: how much a task's selectors agree.

    Args:
        selectors: [..., tasks, k, experts].
    """
    together = selectors.sum(-2).square().sum((-2, -1))
    alone = selectors.square().sum((-3, -2, -1))
    return ((together - alone) / 2).mean()


def surplus(selectors: Tensor) -> Tensor:
    """Σ over tasks and selectors of 1/Σₑ r, mean over the batch (DSelect-k, appendix B.2); 1/Σ is clamped.

    Args:
        selectors: [..., tasks, k, experts], whose sum over the experts falls below 1 on codes that mean no expert.
    """
    return selectors.sum(-1).clamp(min=LEAST_REACHABLE).reciprocal().sum((-2, -1)).mean()


def expected_union(selectors: Tensor, costs: Tensor) -> Tensor:
    """Σₑ cₑ(1 − Π over tasks and selectors of (1 − r)): expected cost of the experts that any task uses.

    Exact once every selector is one-hot. Selectors are taken as independent draws. Mean over the batch.

    Args:
        selectors: [..., tasks, k, experts].
        costs: of each expert [experts].
    """
    unused = torch.ones_like(selectors[..., 0, 0, :])
    for r in selectors.flatten(-3, -2).unbind(-2):  # T·k factors; prod's backward would synchronise a GPU
        unused = unused * (1.0 - r)
    return ((1.0 - unused) * costs).sum(-1).mean()


def importance(weights: Tensor) -> Tensor:
    """CV(I)², I the sum of the weights of each expert over batch and tasks (Shazeer et al., equation 7).

    Krishnamurthy et al. (equation 7) print it without the square, which has no gradient where the load is even.

    Args:
        weights: [..., tasks, experts].
    """
    load = weights.flatten(0, -2).sum(0)
    return load.var(correction=0) / load.mean().square().clamp(min=1e-12)


def sample_similarity(weights: Tensor, x: Tensor, same: float, different: float) -> Tensor:
    """L_s: similar examples to the same expert, dissimilar ones to different experts; summed over tasks.

    Krishnamurthy et al., equations 8–10, with the squared Euclidean distance. No gradient flows into the examples: they
    are what is routed, not what is to be pulled together.

    Args:
        weights: p(e|x) [batch, tasks, experts].
        x: examples [batch, width].
        same: β_s.
        different: β_d.
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
