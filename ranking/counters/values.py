"""Values of a counter's features, computed from sums. Training and serving share this definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.schema import Counter

NEVER = np.iinfo(np.int64).min
"""Time of the last impression of a key without impressions."""
MICROSECONDS = 1e6
"""Microseconds per second."""


@dataclass(frozen=True)
class Sums:
    """Sums over impressions of one key per row.

    Attributes:
        count: number of impressions [rows] float64.
        label_counts: number of impressions with a label [rows, labels] float64.
        label_sums: sum of the labels [rows, labels] float64.
        last: time of the last impression in microseconds [rows] int64, or ``NEVER``.
    """

    count: FloatArray
    label_counts: FloatArray
    label_sums: FloatArray
    last: IdArray

    def weighted(self, weights: FloatArray) -> Sums:
        """Return the sums multiplied by a weight per row."""
        column = weights[:, None]
        return Sums(self.count * weights, self.label_counts * column, self.label_sums * column, self.last)

    def pooled(self, rows: IdArray, count: int) -> Sums:
        """Add the sums of several keys per row.

        Args:
            rows: row of each key [keys], ascending.
            count: number of rows; a row may have no key.
        """
        labels = self.label_sums.shape[1]
        last = np.full(count, NEVER, np.int64)
        pooled = Sums(np.zeros(count), np.zeros((count, labels)), np.zeros((count, labels)), last)
        if len(rows):
            first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
            present = rows[first]
            pooled.count[present] = np.add.reduceat(self.count, first)
            pooled.label_counts[present] = np.add.reduceat(self.label_counts, first)
            pooled.label_sums[present] = np.add.reduceat(self.label_sums, first)
            pooled.last[present] = np.maximum.reduceat(self.last, first)
        return pooled


def decay(seconds: FloatArray, counter: Counter) -> FloatArray:
    """Return the weight of impressions of this age; 1 without a half-life."""
    if counter.half_life_seconds is None:
        return np.ones(len(seconds))
    weights: FloatArray = np.exp2(-np.maximum(seconds, 0.0) / counter.half_life_seconds)
    return weights


def counter_values(counter: Counter, sums: Sums, base: Sums, now: IdArray) -> FloatArray:
    """Return the values of a counter's features.

    A smoothed mean is (label sum + prior × base mean) / (label count + prior). It is NaN while the base has no label.

    Args:
        counter: the counter.
        sums: sums of the key of each row, weighted by their age at ``now``.
        base: sums over all keys; one row per row of ``sums``, or a single row.
        now: time of each row in microseconds [rows] int64.

    Returns:
        Values [rows, ``counter.columns``] float64; NaN is null.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        base_mean = base.label_sums / base.label_counts
    rates = (sums.label_sums + counter.prior * base_mean) / (sums.label_counts + counter.prior)
    age = np.where(sums.last == NEVER, np.nan, np.maximum(now - sums.last, 0) / MICROSECONDS)
    return np.column_stack([rates, sums.count, age])
