"""What a request gives → encoded halves. What it leaves out is looked up by id, already encoded.

The same numbers as ``Encoder.encode`` gives for the completed table, only sooner: ids are looked up as they come, and
columns of numbers are scaled together.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ranking.frozen import FrozenRanker
from ranking.halves import Halves, Sides
from ranking.schema import Owner, Schema
from service.engine.missing import Missing
from service.engine.owned import Given, Owned
from service.engine.rows import Half


class RequestEncoder:
    """Encodes requests for one ranker.

    Args:
        ranker: that scores them.

    Attributes:
        sides: which features belong to which half.
        readable: owner → column → the feature that says what its values are: of an id, if one reads the column.
    """

    def __init__(self, ranker: FrozenRanker) -> None:
        self.sides = Sides(ranker.encoder)
        owners: list[Owner] = ["user", "context", "item"]
        self._owned = {owner: Owned(ranker, owner) for owner in owners}
        schemas = {owner: owned.schema for owner, owned in self._owned.items()}
        items: dict[Owner, Schema] = {"item": schemas.pop("item")}
        self._shared = Half(ranker.encoder, self.sides.shared, schemas)
        self._items = Half(ranker.encoder, self.sides.items, items)
        self._names = tuple(feature.name for feature in ranker.schema.given)
        self.readable = {owner: owned.readable for owner, owned in self._owned.items()}

    def __call__(self, given: Mapping[Owner, Given], candidates: int) -> Halves:
        """The halves of one request.

        Args:
            given: of all three owners; one row of the user and of the context.
            candidates: rows of the items.

        Raises:
            InvalidInputError: a number that no log can hold, text that is no integer (names column and row).
        """
        rows = {
            owner: owned.encode(given[owner], candidates if owner == "item" else 1)
            for owner, owned in self._owned.items()
        }
        hashes = {
            name: row.hashes[:, i] for owner, row in rows.items() for i, name in enumerate(self._owned[owner].parts)
        }
        return Halves(
            self._shared.put_together(rows, hashes, 1),
            self._items.put_together(rows, hashes, candidates),
            torch.zeros(candidates, dtype=torch.int64),
        )

    def missing(self, halves: Halves) -> Missing:
        """What is known neither from the request nor by id.

        Args:
            halves: of one request.
        """
        shared, items = self.sides.shared.missing, self.sides.items.missing
        return Missing(self._names, shared, items, halves.shared.missing[0].numpy(), halves.items.missing.numpy())
