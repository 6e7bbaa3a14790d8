"""Measures within groups of rows: AUC per user or per user and day, NDCG per request."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ranking.metrics.labeled_scores import Array, Ids, LabeledScores, starts_of_runs


class Groups(NamedTuple):
    """A measure within groups of rows; only groups in which it is defined.

    Attributes:
        units: sampling unit of the first row of each group, and usually of all of its rows, as ``UnitDraws.codes``
            numbers them [groups].
        values: the measure [groups].
        weights: weight of each group in the mean of the measure [groups].
    """

    units: Ids
    values: Array
    weights: Array


BLOCK_ROWS = 1 << 20
"""Rows that are sorted at a time, which bounds the memory."""


def in_blocks(measure: Callable[[LabeledScores], Groups], rows: LabeledScores, keys: Ids) -> Groups:
    """Compute a measure within groups for about ``BLOCK_ROWS`` rows at a time: all rows of some keys.

    Args:
        measure: returns the groups of some rows.
        rows: at least one row.
        keys: hash of each row, equal for all rows of a group [rows].
    """
    blocks = -(-len(rows) // BLOCK_ROWS)
    if blocks == 1:
        return measure(rows)
    block = (keys % blocks).astype(np.min_scalar_type(blocks))
    parts = [measure(rows.take(np.flatnonzero(block == number))) for number in np.unique(block)]
    return Groups(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def user_auc(rows: LabeledScores) -> Groups:
    """Compute the AUC within each known user, ties ½; needs at least one row.

    Returns:
        The users with both classes, weighted by their rows.
    """
    return _auc_within(rows, rows.users)


def user_day_auc(rows: LabeledScores) -> Groups:
    """Compute the AUC within the rows of each known user on each day, as ``user_auc`` does."""
    assert rows.days is not None
    return _auc_within(rows, rows.days, rows.users)


def _auc_within(rows: LabeledScores, *keys: Ids) -> Groups:
    """Compute the AUC within the rows that agree in all keys [rows], the last of which is the user."""
    order = np.lexsort((rows.predictions, *keys))
    group = [key[order] for key in keys]
    starts = starts_of_runs(*group)
    ties = starts_of_runs(*group, rows.predictions[order])
    known = group[-1][starts] != 0
    del group  # an array of all rows
    positive = rows.labels[order] == 1
    sizes, lengths = (np.diff(np.append(runs, len(order))) for runs in (starts, ties))
    # Mid-ranks: the mean position of each run of equal predictions. Counted in halves, they are whole numbers.
    doubled = np.repeat(2 * ties + lengths + 1, lengths)
    doubled[~positive] = 0
    positives = np.add.reduceat(positive, starts, dtype=np.int64)
    rank_sum = np.add.reduceat(doubled, starts) / 2 - starts * positives
    pairs = positives * (sizes - positives)
    defined = known & (pairs > 0)
    aucs = (rank_sum - positives * (positives + 1) / 2)[defined] / pairs[defined]
    return Groups(rows.units[order[starts[defined]]], aucs, sizes[defined].astype(np.float64))


def request_ndcg(rows: LabeledScores, at: int) -> Groups:
    """Compute NDCG@k within each request (rows of one user with one request id): gain = label, discount log₂(1 + rank).

    Järvelin and Kekäläinen 2002, section 2.2; rows with equal scores share the mean of their discounts (McSherry and
    Najork 2008, section 2.3), as in scikit-learn.

    Returns:
        The requests with a positive, each of weight 1.
    """
    requests = rows.requests
    assert requests is not None
    known = np.flatnonzero(requests)  # Rows with a known request.
    if not len(known):
        return Groups(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    order = known[np.lexsort((-rows.predictions[known], requests[known], rows.users[known]))]
    user, request, label = rows.users[order], requests[order], rows.labels[order]
    starts = starts_of_runs(user, request)
    sizes = np.diff(np.append(starts, len(order)))
    position = np.arange(len(order)) - np.repeat(starts, sizes)
    discount = np.where(position < at, 1 / np.log2(position + 2), 0.0)
    ties = starts_of_runs(user, request, rows.predictions[order])
    lengths = np.diff(np.append(ties, len(order)))
    shared = np.repeat(np.add.reduceat(discount, ties) / lengths, lengths)
    positives = np.add.reduceat(label, starts).astype(np.int64)
    ideal = np.append(0.0, np.cumsum(1 / np.log2(np.arange(at) + 2)))[np.minimum(positives, at)]
    gain = np.add.reduceat(label * shared, starts)
    has_positive = positives > 0
    values = gain[has_positive] / ideal[has_positive]
    return Groups(rows.units[order[starts[has_positive]]], values, np.ones(len(values)))
