"""Uniform sample of the rows of a log, drawn while the log is read, also in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt

from ranking.encoding.vocabulary import GOLDEN_RATIO
from ranking.ids.hashes import HashArray, hash_integers

Positions = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.float64]


class RowSample:
    """Uniform sample of bounded size: the rows with the smallest keys (bottom-k sampling).

    The key of a row is a hash of its position. The sample is therefore the same in every run, and the same whether the
    log is read as a whole or in parts.

    Args:
        size: maximum number of rows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys: HashArray = np.empty(0, np.uint64)
        self._parts: list[Matrix] = []
        self._limit = np.uint64(2**64 - 1)  # rows with larger keys are not in the sample

    def add(self, positions: Positions, read: Callable[[Positions], Matrix]) -> None:
        """Add rows.

        Args:
            positions: position of each row in the log [rows]; each row of the log has another one.
            read: returns the values of the rows with the given indices among these rows, as numbers [rows] or
                [rows, columns]; it is called for sampled rows only.
        """
        keys = hash_integers(((positions + 1).view(np.uint64) * GOLDEN_RATIO).view(np.int64))
        chosen = np.flatnonzero(keys <= self._limit)
        if len(chosen):
            self._append(keys[chosen], [read(chosen)])

    def part(self) -> Self:
        """Return an empty sample for some other rows, which ``merge`` adds."""
        part = type(self)(self._size)
        part._limit = self._limit
        return part

    def merge(self, part: Self) -> None:
        """Add the sample of other rows, which follow the rows of this one."""
        self._append(part._keys, part._parts)

    def values(self) -> Matrix | None:
        """Return the values of the sampled rows in the order of the log, as ``read`` returned them; None without."""
        if not self._parts:
            return None
        self._prune()
        return self._parts[0]

    def _append(self, keys: HashArray, parts: list[Matrix]) -> None:
        self._keys = np.concatenate([self._keys, keys])
        self._parts += parts
        if len(self._keys) > 2 * self._size:
            self._prune()

    def _prune(self) -> None:
        """Keep the rows with the smallest keys, in the order of the log."""
        values = np.concatenate(self._parts)
        if len(self._keys) > self._size:
            smallest = np.sort(np.argpartition(self._keys, self._size)[: self._size])
            self._keys, values = self._keys[smallest], values[smallest]
            self._limit = self._keys.max()
        self._parts = [values]
