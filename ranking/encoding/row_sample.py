"""Uniform sample of the rows of a log, drawn while the log is read, also in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ranking.encoding.vocabulary import GOLDEN_RATIO
from ranking.ids.hashes import HashArray, hash_integers

Keys = npt.NDArray[Any]
Matrix = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]
Rows = TypeVar("Rows")


class RowSample(Generic[Rows]):
    """Uniform sample of bounded size: the rows with the smallest keys (bottom-k sampling).

    Args:
        size: maximum number of rows.
        concat: concatenates rows.
        take: returns the rows with the given indices.
    """

    def __init__(
        self, size: int, concat: Callable[[list[Rows]], Rows], take: Callable[[Rows, Positions], Rows]
    ) -> None:
        self._size, self._concat, self._take = size, concat, take
        self._keys: list[Keys] = []
        self._parts: list[Rows] = []
        self._kept = 0  # number of rows in the parts
        self._limit: Any = np.inf  # rows with larger keys are not in the sample

    def add(self, keys: Keys, read: Callable[[Positions], Rows]) -> None:
        """Add rows.

        Args:
            keys: random number of each row [rows].
            read: returns the rows with the given indices among these rows; it is called for sampled rows only.
        """
        chosen = np.flatnonzero(keys <= self._limit)
        if len(chosen):
            self._append([keys[chosen]], [read(chosen)])

    def part(self) -> Self:
        """Return an empty sample for some other rows, which ``merge`` adds."""
        part = type(self)(self._size, self._concat, self._take)
        part._limit = self._limit
        return part

    def merge(self, part: Self) -> None:
        """Add the sample of other rows, which follow the rows of this one."""
        self._append(part._keys, part._parts)

    def rows(self) -> Rows | None:
        """Return the sampled rows in the order of the log; None without rows."""
        if not self._parts:
            return None
        self._prune()
        return self._parts[0]

    def _append(self, keys: list[Keys], parts: list[Rows]) -> None:
        self._keys += keys
        self._parts += parts
        self._kept += sum(map(len, keys))
        if self._kept > 2 * self._size:
            self._prune()

    def _prune(self) -> None:
        """Keep the rows with the smallest keys, in the order of the log."""
        keys, rows = np.concatenate(self._keys), self._concat(self._parts)
        if len(keys) > self._size:
            smallest = np.sort(np.argpartition(keys, self._size)[: self._size])
            keys, rows = keys[smallest], self._take(rows, smallest)
            self._limit = keys.max()
        self._keys, self._parts, self._kept = [keys], [rows], len(keys)


def number_sample(size: int) -> RowSample[Matrix]:
    """Return an empty sample of rows that are numbers, [rows] or [rows, columns]."""
    return RowSample(size, np.concatenate, _take_numbers)


def row_keys(positions: Positions) -> HashArray:
    """Return a key of each row from its position in the log [rows].

    With these keys a sample is the same in every run, and the same whether the log is read as a whole or in parts.
    """
    return hash_integers(((positions + 1).view(np.uint64) * GOLDEN_RATIO).view(np.int64))


def _take_numbers(numbers: Matrix, rows: Positions) -> Matrix:
    return numbers[rows]
