"""Bootstrap intervals: whole users are drawn with replacement, because rows of one user are not independent."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ranking.metrics.labeled_scores import Array, Ids

BLOCK = 65_536
"""Users per block in which counts are converted to floats."""


class UserDraws:
    """Counts of each user in each draw of the cluster bootstrap (Field and Welsh 2007, section 2.3).

    All tasks, slices and models use the same draws, so that their differences are paired. Draw 0 is the data itself,
    with every user once. One formula therefore computes a measure on the data (index 0) and on the draws (from index
    1).

    Args:
        users: id of each row's user [rows].
        draws: number of draws B.
        seed: random seed.

    Attributes:
        users: code of each row's user [rows].
        counts: number of times that each user was drawn [1 + B, users] uint8.
    """

    def __init__(self, users: Ids, draws: int = 200, seed: int = 0) -> None:
        distinct, self.users = np.unique(users, return_inverse=True)
        random = np.random.default_rng(seed)
        self.counts: npt.NDArray[np.uint8] = np.ones((1 + draws, len(distinct)), np.uint8)
        for draw in self.counts[1:]:
            draw[:] = np.bincount(random.integers(len(distinct), size=len(distinct)), minlength=len(distinct))

    def sums(self, users: Ids, columns: Iterable[npt.NDArray[np.generic]]) -> Array:
        """Return the sum of each column in each draw [columns, 1 + B]: sums by user times the counts of the users.

        Args:
            users: code of each row's user [rows]; a subset of the rows is allowed.
            columns: values [rows] of each column.
        """
        present, user = np.unique(users, return_inverse=True)
        by_user = np.stack([np.bincount(user, column, len(present)) for column in columns], axis=1)
        total = np.zeros((len(self.counts), by_user.shape[1]))
        for start in range(0, len(present), BLOCK):
            block = slice(start, start + BLOCK)
            total += self.counts[:, present[block]].astype(np.float64) @ by_user[block]
        return total.T


def interval(values: Array, *, reflected: bool = False) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of a measure (Efron and Tibshirani 1993, section 13.3).

    Args:
        values: the measure on the data and on each draw [1 + B], NaN where undefined.
        reflected: reflect the percentiles at the value (basic interval, Davison and Hinkley 1997, section 5.2), for a
            measure that noise can only increase: its draws exceed the value as much as the value exceeds the truth.

    Returns:
        Lower and upper bound; None without draws, or if the measure is undefined on the data or on half of the draws.
    """
    drawn = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]) or len(drawn) < max((len(values) - 1) / 2, 1):
        return None
    low, high = (float(end) for end in np.quantile(drawn, [0.025, 0.975]))
    value = float(values[0])
    return (2 * value - high, 2 * value - low) if reflected else (low, high)
