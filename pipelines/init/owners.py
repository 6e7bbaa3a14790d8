"""Guess of the entity that each column describes: a column of items has the same value for all rows of an item."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.init.column_profile import Codes, ColumnProfile
from pipelines.init.guesses import OwnerGuess
from pipelines.init.names import ITEMS, USERS, words
from ranking.schema import Owner

CONSTANT = 0.95
"""Minimum agreement of the rows of an id."""
MIN_IDS = 10
"""Minimum number of ids with several rows and an unusual value; with fewer, the log cannot tell."""


@dataclass(frozen=True)
class Constancy:
    """Constancy of a column for the ids of an entity.

    Rows with the most frequent value of the column are not judged: a column of zeros with a rare one would be constant
    for every entity.

    Attributes:
        share: mean share of the other rows of the same id that have the same value.
        rows: number of judged rows: those with an unusual value whose id has several rows.
        ids: number of their ids.
    """

    share: float
    rows: int
    ids: int

    @property
    def judged(self) -> bool:
        """Whether there are enough ids to tell."""
        return self.ids >= MIN_IDS

    @property
    def constant(self) -> bool:
        """Whether the column is constant for each id."""
        return self.judged and self.share >= CONSTANT


def constancy(ids: Codes, values: Codes) -> Constancy:
    """Measure how constant a column is per id.

    Args:
        ids: number of the id of each row [rows]; −1 where null.
        values: number of the value of each row [rows]; −1 where null, which counts as a value.
    """
    known = ids >= 0
    ids, values = ids[known], values[known] + 1
    if not len(ids):
        return Constancy(0.0, 0, 0)
    usual, width = np.bincount(values).argmax(), int(values.max()) + 1
    rows_of_id = np.bincount(ids)
    pairs, rows = np.unique(ids * width + values, return_counts=True)
    pair_ids = pairs // width
    judged = (rows_of_id[pair_ids] >= 2) & (pairs % width != usual)
    pair_ids, rows = pair_ids[judged], rows[judged]
    if not len(rows):
        return Constancy(0.0, 0, 0)
    agreement = (rows - 1) / (rows_of_id[pair_ids] - 1)
    total = int(rows.sum())
    return Constancy(float((agreement * rows).sum() / total), total, len(np.unique(pair_ids)))


class OwnerGuesser:
    """Guesses the owners of columns.

    Args:
        columns: profiles of all columns.
        user: name of the user column; None without users.
        item: name of the item column; None if every row is an item of its own.
        request: name of a column that rows shown together share; None without.
    """

    def __init__(
        self, columns: dict[str, ColumnProfile], user: str | None, item: str | None, request: str | None
    ) -> None:
        self._columns = columns
        self._ids: dict[Owner, str | None] = {"user": user, "item": item}
        self._request = request

    def constancy(self, column: str, owner: Owner) -> Constancy:
        """Return how constant a column is per user or item."""
        ids = self._ids[owner]
        if ids is None:
            return Constancy(0.0, 0, 0)
        return constancy(self._columns[ids].codes, self._columns[column].codes)

    def is_attribute(self, column: str) -> bool:
        """Return whether a column is constant per user or per item, so that it does not depend on the impression."""
        return any(self.constancy(column, owner).constant for owner in self._ids)

    def guess(self, column: str) -> OwnerGuess:
        """Return the owner of a column with the reason."""
        owners: list[Owner] = ["item", "user"]
        measured = {owner: self.constancy(column, owner) for owner in owners}
        constant = [owner for owner in owners if measured[owner].constant]
        if constant:
            owner = max(constant, key=lambda candidate: measured[candidate].share)
            found = measured[owner]
            return OwnerGuess(
                owner,
                f"constant per {self._ids[owner]} in {found.share:.1%} of {found.rows:,} rows",
                sure=True,
                constant=True,
            )
        if self._ids["item"] is None:
            return OwnerGuess("item", "every row is an item of its own", sure=True)
        if self._request is not None:
            found = constancy(self._columns[self._request].codes, self._columns[column].codes)
            if found.judged and not found.constant:
                return OwnerGuess("item", f"varies between the rows of one {self._request}", sure=True)
        named = self._by_name(column)
        if named is not None and not measured[named].judged:
            return OwnerGuess(named, "by its name; too few repeated ids to tell", sure=False)
        varies = " and ".join(
            f"{ids} (constant in {measured[owner].share:.0%})"
            for owner in owners
            if (ids := self._ids[owner]) is not None and measured[owner].judged
        )
        if varies:
            return OwnerGuess("context", f"varies per {varies}", sure=True)
        return OwnerGuess("context", "too few repeated ids to tell", sure=False)

    def _by_name(self, column: str) -> Owner | None:
        parts = words(column)
        if self._ids["user"] is not None and any(word in USERS for word in parts):
            return "user"
        return "item" if any(word in ITEMS for word in parts) else None
