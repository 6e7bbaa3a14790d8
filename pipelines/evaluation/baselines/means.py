"""Mean label by user or item over a stream of rows."""

from __future__ import annotations

import numpy as np

from ranking.encoding.batch import Float32
from ranking.metrics import Array, Ids

MIN_BUFFERED_ROWS = 1 << 18
"""Number of rows after which the buffer is merged into the sums, at the earliest."""


class MeansById:
    """Smoothed mean of the labels by id; the memory grows with the number of distinct ids, not with the rows.

    The mean of an id is drawn to that of all rows with the weight that minimizes the expected squared error: the
    variance of the labels of one id, divided by the variance of the true means of the ids (Bühlmann's credibility).
    Both are estimated by the method of moments, for each task.

    Args:
        tasks: number of tasks T.
    """

    def __init__(self, tasks: int) -> None:
        self._ids: Ids = np.empty(0, np.int64)
        self._sums: Array = np.empty((0, 4 * tasks))  # rows, weights, weighted labels and squares of each task
        self._buffer: list[tuple[Ids, Array]] = []
        self._buffered = 0
        self._tasks = tasks
        self._priors: dict[int, float] = {}  # by task, of the merged sums

    def add(self, ids: Ids, labels: Float32, weights: Float32) -> None:
        """Add rows.

        Args:
            ids: hash of each row's id [rows], 0 if null; these rows are ignored.
            labels: labels [rows, tasks], NaN where masked.
            weights: sample weights [rows].
        """
        distinct, group = np.unique(ids, return_inverse=True)
        present = ~np.isnan(labels) & (weights > 0)[:, None]
        values = np.where(present, labels, 0).astype(np.float64)
        weight = present * weights[:, None].astype(np.float64)
        columns = np.concatenate([present, weight, weight * values, weight * values**2], axis=1)
        sums = np.stack([np.bincount(group, column, len(distinct)) for column in columns.T], axis=1)
        self._buffer.append((distinct[distinct != 0], sums[distinct != 0]))
        self._buffered += len(distinct)
        if self._buffered > max(MIN_BUFFERED_ROWS, len(self._ids)):
            self._merge()

    def __len__(self) -> int:
        """Return the number of distinct ids."""
        self._merge()
        return len(self._ids)

    def prior(self, task: int) -> float:
        """Return the weight of the mean of all rows in the mean of an id, in units of sample weights.

        Infinite if the means of the ids do not differ more than by chance, or if no id has two rows.

        Args:
            task: index of the task.
        """
        self._merge()
        if task not in self._priors:
            self._priors[task] = self._estimate_prior(task)
        return self._priors[task]

    def _estimate_prior(self, task: int) -> float:
        """Estimate the prior of a task from the merged sums."""
        rows, weights, sums, squares = self._of(task)
        known = rows > 0
        rows, weights, sums, squares = rows[known], weights[known], sums[known], squares[known]
        if rows.sum() <= len(rows) or len(rows) < 2:
            return np.inf
        means, total = sums / weights, weights.sum()
        within = max(float((squares - sums * means).sum()), 0.0) / (rows.sum() - len(rows))
        overall = sums.sum() / total
        between = float((weights * (means - overall) ** 2).sum()) - (len(rows) - 1) * within
        between /= total - float((weights**2).sum()) / total
        return within / between if between > 0 else np.inf

    def predict(self, ids: Ids, task: int, overall: float) -> Float32:
        """Return the smoothed mean of each row's id [rows]; an unknown id has the overall mean.

        Args:
            ids: hash of each row's id [rows].
            task: index of the task.
            overall: mean label of the training rows.
        """
        self._merge()
        _, weights, sums, _ = self._of(task)
        prior = self.prior(task)
        means = np.full(len(self._ids) + 1, overall)
        if np.isfinite(prior):
            known = np.flatnonzero(weights > 0)
            means[known] = (sums[known] + prior * overall) / (weights[known] + prior)
        positions = np.searchsorted(self._ids, ids)
        known_ids = np.append(self._ids, 0)[positions] == ids
        return means[np.where(known_ids & (ids != 0), positions, len(self._ids))].astype(np.float32)

    def _of(self, task: int) -> tuple[Array, Array, Array, Array]:
        """Return rows, weights, weighted labels and weighted squares of a task by id."""
        rows, weights, sums, squares = (self._sums[:, task + i * self._tasks] for i in range(4))
        return rows, weights, sums, squares

    def _merge(self) -> None:
        """Merge the buffer into the sums."""
        if not self._buffer:
            return
        parts = [(self._ids, self._sums), *self._buffer]
        self._ids, group = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
        values = np.concatenate([sums for _, sums in parts])
        self._sums = np.stack([np.bincount(group, column, len(self._ids)) for column in values.T], axis=1)
        self._buffer, self._buffered, self._priors = [], 0, {}
