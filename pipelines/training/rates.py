"""How step sizes rise and fall."""

from __future__ import annotations


def rate_factor(step: int, steps: int, warmup: float, chosen_at: int) -> float:
    """Share of the full step size at a step (the first is 1): up over the warm-up, down once the experts are chosen.

    Args:
        step: of the whole training.
        steps: in all.
        warmup: share of the steps over which the size rises linearly.
        chosen_at: step from which it falls linearly to 0.
    """
    rising = step / max(warmup * steps, 1.0)
    falling = (steps - step + 1) / max(1, steps - chosen_at)
    return min(1.0, rising, falling)
