"""Uniform sample of the rows of a log, drawn while the log is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Matrix = npt.NDArray[np.float64]


class RowSample:
    """Uniform sample of bounded size: the rows with the smallest random keys (bottom-k sampling).

    The sample is the same in every run. It depends on the order of the rows, not on their division into tables.

    Args:
        size: maximum number of rows.
        encode: returns the values of some rows as numbers [rows, columns]; it is called for sampled rows only.
    """

    def __init__(self, size: int, encode: Callable[[pa.Table], Matrix]) -> None:
        self._size, self._encode = size, encode
        self._random = np.random.default_rng(0)
        self._keys = np.empty(0)
        self._parts: list[Matrix] = []
        self._bound = 1.0

    def add(self, table: pa.Table) -> None:
        """Add the rows of a table."""
        keys = self._random.random(table.num_rows)
        chosen = np.flatnonzero(keys < self._bound)
        if not len(chosen):
            return
        self._parts.append(self._encode(table.take(chosen)))
        self._keys = np.concatenate([self._keys, keys[chosen]])
        if len(self._keys) > 2 * self._size:
            self._prune()

    def rows(self) -> Matrix | None:
        """Return the sampled rows [rows, columns]; None if no row was added."""
        if not self._parts:
            return None
        self._prune()
        return self._parts[0]

    def _prune(self) -> None:
        """Keep the rows with the smallest keys, in the order of the log."""
        values = np.concatenate(self._parts)
        if len(self._keys) > self._size:
            smallest = np.sort(np.argpartition(self._keys, self._size)[: self._size])
            self._keys, values = self._keys[smallest], values[smallest]
            self._bound = self._keys.max()
        self._parts = [values]
