"""Intervals: whole users are drawn with replacement, because the rows of one user are not independent."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ranking.metrics.rows import Array, Ids

BLOCK = 65_536
"""Users whose counts are turned into floats at a time."""


class UserDraws:
    """How often each user is drawn: the cluster bootstrap (Field and Welsh 2007, section 2.3).

    The same draws serve all tasks, slices and models, so that their differences are paired. Draw 0 is the data itself:
    every user once. So one formula gives a measure's value (at 0) and what it was in the draws (from 1 on).

    Args:
        users: id of each row's user [rows].
        draws: B, how often as many users as there are are drawn.
        seed: of the draws.

    Attributes:
        users: code of each row's user [rows].
        counts: how often each user was drawn [1 + B, users] uint8.
    """

    def __init__(self, users: Ids, draws: int = 200, seed: int = 0) -> None:
        known, self.users = np.unique(users, return_inverse=True)
        random = np.random.default_rng(seed)
        self.counts: npt.NDArray[np.uint8] = np.ones((1 + draws, len(known)), np.uint8)
        for draw in self.counts[1:]:
            draw[:] = np.bincount(random.integers(len(known), size=len(known)), minlength=len(known))

    def sums(self, users: Ids, columns: Iterable[npt.NDArray[np.generic]]) -> Array:
        """Sum of each column in each draw [columns, 1 + B]: sums by user, times how often the user was drawn.

        Args:
            users: code of each row's user [rows], which need not be all rows.
            columns: values [rows] each.
        """
        present, user = np.unique(users, return_inverse=True)
        by_user = np.stack([np.bincount(user, column, len(present)) for column in columns], axis=1)
        total = np.zeros((len(self.counts), by_user.shape[1]))
        for start in range(0, len(present), BLOCK):
            block = slice(start, start + BLOCK)
            total += self.counts[:, present[block]].astype(np.float64) @ by_user[block]
        return total.T


def interval(values: Array, *, reflected: bool = False) -> tuple[float, float] | None:
    """95 % interval of a measure: the percentiles of its draws (Efron and Tibshirani 1993, section 13.3).

    Args:
        values: the measure in the data and in each draw [1 + B], NaN where it is undefined.
        reflected: mirror the percentiles at the value (the basic interval, Davison and Hinkley 1997, section 5.2), for
            a measure that noise only raises: its draws lie above the value as far as the value lies above the truth.

    Returns:
        Low and high end; None without draws, or where the measure is undefined in the data or in half of the draws.
    """
    drawn = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]) or len(drawn) < max((len(values) - 1) / 2, 1):
        return None
    low, high = (float(end) for end in np.quantile(drawn, [0.025, 0.975]))
    value = float(values[0])
    return (2 * value - high, 2 * value - low) if reflected else (low, high)
