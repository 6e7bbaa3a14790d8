"""What every measure reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The rows of one task that have its label.

    Attributes:
        labels: 0 or 1, or numbers [rows], without NaN.
        predictions: probabilities or numbers [rows].
        users: code of each row's user, as ``UserDraws.users`` numbers them [rows].
        requests: id of the request that each row was shown in [rows], 0 if unknown; None if no row has one.
    """

    labels: Array
    predictions: Array
    users: Ids
    requests: Ids | None = None

    def __len__(self) -> int:
        return len(self.labels)


def starts_of_runs(*columns: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Where a new combination of values begins in sorted columns of at least one row."""
    new = np.zeros(len(columns[0]) - 1, np.bool_)
    for column in columns:
        new |= column[1:] != column[:-1]
    return np.append(0, np.flatnonzero(new) + 1)
