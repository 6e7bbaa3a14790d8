"""Input of all measures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabeledScores:
    """Labels and predictions of one task.

    Attributes:
        labels: 0 or 1, or regression values [rows], without NaN.
        predictions: probabilities or regression values [rows].
        units: sampling unit of each row, as ``UnitDraws.codes`` numbers them [rows].
        users: id of each row's user [rows], 0 if unknown.
        requests: id of each row's request [rows], 0 if unknown; None if all are unknown.
        days: number of each row's calendar day [rows]; None if unknown.
    """

    labels: Array
    predictions: Array
    units: Ids
    users: Ids
    requests: Ids | None = None
    days: Ids | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ids) -> LabeledScores:
        """Return the rows at these indices."""
        requests, days = (None if column is None else column[rows] for column in (self.requests, self.days))
        return LabeledScores(
            self.labels[rows], self.predictions[rows], self.units[rows], self.users[rows], requests, days
        )


def number_consecutively(codes: Ids, count: int) -> tuple[Ids, Ids]:
    """Replace codes by consecutive numbers from 0 in the order of the codes: ``np.unique`` without sorting.

    Args:
        codes: codes, each from 0 to ``count`` − 1 [rows].
        count: number of possible codes.

    Returns:
        The number of each row [rows], and the code of each number [numbers].
    """
    occurs = np.zeros(count, np.bool_)
    occurs[codes] = True
    return (np.cumsum(occurs) - 1)[codes], np.flatnonzero(occurs)


def count_distinct(codes: Ids) -> int:
    """Return the number of distinct codes, which are small and not negative."""
    return int(np.count_nonzero(np.bincount(codes)))


def starts_of_runs(*columns: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Return the positions at which a new combination of values starts in sorted, nonempty columns."""
    new = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        new |= column[1:] != column[:-1]
    return np.append(0, np.flatnonzero(new) + 1)
