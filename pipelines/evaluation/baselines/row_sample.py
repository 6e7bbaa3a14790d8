"""Uniform random sample of bounded size from a stream of encoded rows."""

from __future__ import annotations

import numpy as np

from pipelines.training.labeled_batch import LabeledBatch
from ranking.metrics import Array


class RowSample:
    """The rows with the smallest random keys, which is a uniform sample without replacement.

    Args:
        size: maximum number of rows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._random = np.random.default_rng(0)
        self._parts: list[LabeledBatch] = []
        self._keys: Array = np.empty(0)
        self._threshold = 1.0

    def add(self, batch: LabeledBatch) -> None:
        """Add rows; at most twice the size of the sample is kept."""
        keys = self._random.random(len(batch))
        chosen = np.flatnonzero(keys < self._threshold)
        self._parts.append(batch.take(chosen))
        self._keys = np.append(self._keys, keys[chosen])
        if len(self._keys) > 2 * self._size:
            self._shrink()

    def rows(self) -> LabeledBatch:
        """Return the sample, in the order of the stream; needs at least one added batch."""
        self._shrink()
        return self._parts[0]

    def _shrink(self) -> None:
        merged = LabeledBatch.concat(self._parts)
        if len(merged) > self._size:
            kept = np.sort(np.argpartition(self._keys, self._size)[: self._size])
            merged, self._keys = merged.take(kept), self._keys[kept]
            self._threshold = float(self._keys.max())
        self._parts = [merged]
