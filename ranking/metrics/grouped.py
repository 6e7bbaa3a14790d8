"""Measures within groups of rows: AUC per user or per user and day, NDCG per request."""

from __future__ import annotations

import numpy as np

from ranking.metrics.labeled_scores import Array, Ids, LabeledScores, starts_of_runs


def user_auc(rows: LabeledScores, days: Ids | None = None) -> tuple[Array, Array]:
    """Compute the AUC within each user, or within each user and day, ties ½; needs at least one row.

    Args:
        rows: the rows.
        days: day of each row [rows], which divides the rows of a user into groups; None for one group per user.

    Returns:
        Per row, the AUC of its group (0 if undefined), and 1 if its user is known and the group has both classes, else
        0: [rows] each.
    """
    keys = (rows.users,) if days is None else (days, rows.users)
    order = np.lexsort((rows.predictions, *keys))
    user, prediction, positive = rows.users[order], rows.predictions[order], rows.labels[order] == 1
    group = [key[order] for key in keys]
    starts = starts_of_runs(*group)
    sizes = np.diff(np.append(starts, len(user)))
    # Mid-ranks within each group: the mean position of each run of equal predictions.
    ties = starts_of_runs(*group, prediction)
    lengths = np.diff(np.append(ties, len(user)))
    rank = np.repeat(ties + (lengths + 1) / 2, lengths) - np.repeat(starts, sizes)
    positives = np.add.reduceat(positive.astype(np.float64), starts)
    pairs = positives * (sizes - positives) * (user[starts] != 0)
    rank_sum = np.add.reduceat(np.where(positive, rank, 0.0), starts)
    aucs = (rank_sum - positives * (positives + 1) / 2) / np.maximum(pairs, 1.0)
    value, both = np.zeros(len(rows)), np.zeros(len(rows))
    value[order], both[order] = np.repeat(np.where(pairs > 0, aucs, 0.0), sizes), np.repeat(pairs > 0, sizes)
    return value, both


def request_ndcg(rows: LabeledScores, at: int) -> tuple[Array, Array]:
    """Compute NDCG@k within each request (rows of one user with one request id): gain = label, discount log₂(1 + rank).

    Järvelin and Kekäläinen 2002, section 2.2; rows with equal scores share the mean of their discounts (McSherry and
    Najork 2008, section 2.3), as in scikit-learn.

    Returns:
        At one row of each request with a positive, its NDCG and 1; 0 at all other rows: [rows] each.
    """
    value, counted = np.zeros(len(rows)), np.zeros(len(rows))
    requests = rows.requests
    if requests is None or not requests.any():
        return value, counted
    known = np.flatnonzero(requests)  # Rows with a known request.
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
    first_rows = order[starts[has_positive]]
    value[first_rows], counted[first_rows] = gain[has_positive] / ideal[has_positive], 1.0
    return value, counted
