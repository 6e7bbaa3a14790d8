"""Ranking quality of scores against labels; NumPy arrays [rows], labels without NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class RankedScores:
    """Scores sorted once, so that AUC under many row weights costs one pass each.

    Args:
        labels: 0 or 1.
        scores: the higher, the more likely 1.
    """

    def __init__(self, labels: Array, scores: Array) -> None:
        self._order = np.argsort(scores, kind="stable")
        ranked = scores[self._order]
        self._positive = labels[self._order] == 1
        self._starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])[: len(ranked)]  # of runs of equal scores

    def auc(self, weights: Array | None = None) -> float | None:
        """P(score of a positive > score of a negative), ties ½; None if one of the classes is absent."""
        w = np.ones(len(self._order)) if weights is None else weights[self._order]
        if not len(w):
            return None
        positive = np.add.reduceat(np.where(self._positive, w, 0.0), self._starts)
        negative = np.add.reduceat(np.where(self._positive, 0.0, w), self._starts)
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative / 2
        return float((positive * below).sum() / pairs) if pairs > 0 else None


def auc(labels: Array, scores: Array) -> float | None:
    """Area under the ROC curve; None if one of the classes is absent."""
    return RankedScores(labels, scores).auc()


def gauc(labels: Array, scores: Array, users: Ids) -> float | None:
    """Mean AUC of the users who have both classes, weighted by their impressions; None if nobody has.

    Zhu et al. 2017, "Optimized Cost per Click in Taobao Display Advertising", equation for GAUC.
    """
    order = np.lexsort((scores, users))
    user, score, positive = users[order], scores[order], labels[order] == 1
    if not len(user):
        return None
    new_user = np.r_[True, user[1:] != user[:-1]]
    starts = np.flatnonzero(new_user)
    sizes = np.diff(np.r_[starts, len(user)])
    # mid-ranks inside each user: the mean position of each run of equal scores
    runs = np.flatnonzero(new_user | np.r_[True, score[1:] != score[:-1]])
    lengths = np.diff(np.r_[runs, len(user)])
    rank = np.repeat(runs + (lengths + 1) / 2, lengths) - np.repeat(starts, sizes)
    p = np.add.reduceat(positive.astype(np.float64), starts)
    both = (p > 0) & (p < sizes)
    if not both.any():
        return None
    rank_sum = np.add.reduceat(np.where(positive, rank, 0.0), starts)[both]
    p, sizes = p[both], sizes[both]
    each = (rank_sum - p * (p + 1) / 2) / (p * (sizes - p))
    return float(np.average(each, weights=sizes))


def logloss(labels: Array, probabilities: Array) -> float:
    """Mean cross-entropy in nats; probabilities are kept 1e-7 away from 0 and 1."""
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))


def calibration(labels: Array, probabilities: Array) -> float | None:
    """Mean prediction over base rate; 1 is perfect, None without a positive."""
    base = labels.mean()
    return float(probabilities.mean() / base) if base > 0 else None


def rmse(labels: Array, predictions: Array) -> float:
    """Root of the mean squared error, in the label's (transformed) unit."""
    return float(np.sqrt(np.mean(np.square(labels - predictions))))


def user_bootstrap(
    statistic: Callable[[Array], float | None], users: Ids, samples: int = 200, seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of a statistic when whole users are drawn with replacement (their rows are not independent).

    Args:
        statistic: row weights [rows] → value, None where undefined; such draws are left out.
        users: the user of each row [rows].
        samples: draws.
        seed: of the draws.

    Returns:
        Low and high end, or None if the statistic was undefined in half of the draws.
    """
    _, user = np.unique(users, return_inverse=True)
    count = int(user.max()) + 1 if len(user) else 0
    random = np.random.default_rng(seed)
    draws = (np.bincount(random.integers(count, size=count), minlength=count) for _ in range(samples if count else 0))
    values = [value for draw in draws if (value := statistic(draw[user].astype(np.float64))) is not None]
    if len(values) < max(samples / 2, 1):
        return None
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
