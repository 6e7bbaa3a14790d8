"""Mean label by user or item over a stream of rows."""

from __future__ import annotations

import numpy as np

from ranking.encoding.batch import Float32
from ranking.metrics import Array, Ids

PRIOR_ROWS = 20.0
"""Rows with the mean of all rows that count in addition to those of an id, so that rare ids stay near that mean."""
MIN_BUFFERED_ROWS = 1 << 18
"""Number of rows after which the buffer is merged into the sums, at the earliest."""


class MeansById:
    """Weighted sums of the labels by id; the memory grows with the number of distinct ids, not with the rows.

    Args:
        tasks: number of tasks T.
    """

    def __init__(self, tasks: int) -> None:
        self._ids: Ids = np.empty(0, np.int64)
        self._sums: Array = np.empty((0, 2 * tasks))  # weights and weighted labels of each task
        self._buffer: list[tuple[Ids, Array]] = []
        self._buffered = 0
        self._tasks = tasks

    def add(self, ids: Ids, labels: Float32, weights: Float32) -> None:
        """Add rows.

        Args:
            ids: hash of each row's id [rows], 0 if null; these rows are ignored.
            labels: labels [rows, tasks], NaN where masked.
            weights: sample weights [rows].
        """
        distinct, group = np.unique(ids, return_inverse=True)
        present = ~np.isnan(labels)
        columns = np.concatenate([present * weights[:, None], np.where(present, labels, 0) * weights[:, None]], axis=1)
        sums = np.stack([np.bincount(group, column, len(distinct)) for column in columns.T], axis=1)
        self._buffer.append((distinct[distinct != 0], sums[distinct != 0]))
        self._buffered += len(distinct)
        if self._buffered > max(MIN_BUFFERED_ROWS, len(self._ids)):
            self._merge()

    def __len__(self) -> int:
        """Return the number of distinct ids."""
        self._merge()
        return len(self._ids)

    def predict(self, ids: Ids, task: int, overall: float) -> Float32:
        """Return the smoothed mean of each row's id [rows]; an unknown id has the overall mean.

        Args:
            ids: hash of each row's id [rows].
            task: index of the task.
            overall: mean label of the training rows.
        """
        self._merge()
        weights, sums = self._sums[:, task], self._sums[:, self._tasks + task]
        means = np.append((sums + PRIOR_ROWS * overall) / (weights + PRIOR_ROWS), overall)
        positions = np.searchsorted(self._ids, ids)
        known = np.append(self._ids, 0)[positions] == ids
        return means[np.where(known & (ids != 0), positions, len(self._ids))].astype(np.float32)

    def _merge(self) -> None:
        """Merge the buffer into the sums."""
        if not self._buffer:
            return
        parts = [(self._ids, self._sums), *self._buffer]
        self._ids, group = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
        values = np.concatenate([sums for _, sums in parts])
        self._sums = np.stack([np.bincount(group, column, len(self._ids)) for column in values.T], axis=1)
        self._buffer, self._buffered = [], 0
