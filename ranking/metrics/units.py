"""Units that the bootstrap draws: users, or requests or single rows where the user is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ranking.metrics.labeled_scores import Ids, number_consecutively

UnitKind = Literal["user", "request", "row"]
KINDS: tuple[UnitKind, ...] = ("user", "request", "row")

MAX_SHARE = 0.5
"""Share of the rows above which one id is a placeholder, such as "anonymous", and counts as unknown."""


@dataclass(frozen=True)
class SamplingUnits:
    """Partition of rows into units that the bootstrap treats as independent.

    The unit of a row is its user; if the user is unknown, its request; if both are unknown, the row itself. An id is
    unknown if it is null, or if more than ``MAX_SHARE`` of the rows have it.

    Attributes:
        kind: unit of most rows.
        codes: number of each row's unit, from 0 [rows].
        count: number of units.
        users: id of each row's user, 0 if unknown [rows].
        has_placeholder: whether one user has more than ``MAX_SHARE`` of the rows, so that its id counts as unknown.
    """

    kind: UnitKind
    codes: Ids
    count: int
    users: Ids
    has_placeholder: bool = False

    @classmethod
    def of(cls, users: Ids, requests: Ids | None = None) -> SamplingUnits:
        """Choose the unit of each row.

        Args:
            users: id of each row's user, 0 if null [rows].
            requests: id of each row's request, 0 if null [rows]; None if there are none.
        """
        logged, users = users, _known_ids(users)
        requests = np.zeros_like(users) if requests is None else _known_ids(requests)
        kinds = np.where(users != 0, 0, np.where(requests != 0, 1, 2)).astype(np.int8)
        codes, count = np.zeros(len(users), np.int64), 0
        for kind, ids in enumerate((users, requests, np.arange(len(users)))):
            chosen = kinds == kind
            distinct, numbers = np.unique(ids[chosen], return_inverse=True)
            codes[chosen] = count + numbers
            count += len(distinct)
        unit = KINDS[int(np.bincount(kinds, minlength=len(KINDS)).argmax())]
        return cls(unit, codes, count, users, bool((logged != users).any()))

    def take(self, rows: Ids) -> SamplingUnits:
        """Return the units of the rows at these indices, in their order, numbered from 0."""
        codes, present = number_consecutively(self.codes[rows], self.count)
        return SamplingUnits(self.kind, codes, len(present), self.users[rows], self.has_placeholder)


def _known_ids(ids: Ids) -> Ids:
    """Return the ids [rows] with 0 instead of a placeholder."""
    if not len(ids):
        return ids
    middle = len(ids) // 2
    is_median = ids == np.partition(ids, middle)[middle]  # an id of more than half of the rows is their median
    return np.where(is_median, 0, ids) if np.count_nonzero(is_median) > MAX_SHARE * len(ids) else ids
