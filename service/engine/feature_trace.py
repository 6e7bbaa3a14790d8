"""Feature values computed during encoding, for the served log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ranking.encoding.batch import Float32, Mask
from ranking.schema import Owner
from service.engine.values import Values


@dataclass(frozen=True)
class FeatureTrace:
    """Values that a request does not contain: which ids the bundle's tables know, counters and histories.

    Attributes:
        known: whether the table of the owner has each id [rows]; owners without a table are absent.
        numbers: values of the owner's counters, in the order of ``RequestEncoder.counter_columns`` [rows, columns];
            NaN is null. Owners without counters are absent.
        lists: values of histories by column [requests].
    """

    known: Mapping[Owner, Mask]
    numbers: Mapping[Owner, Float32]
    lists: Mapping[str, Values]

    def of_request(self, request: int, candidates: slice) -> FeatureTrace:
        """Return the values of one of several requests, whose candidates have these positions."""
        rows: dict[Owner, slice] = {
            "user": (shared := slice(request, request + 1)),
            "context": shared,
            "item": candidates,
        }
        return FeatureTrace(
            {owner: known[rows[owner]] for owner, known in self.known.items()},
            {owner: numbers[rows[owner]] for owner, numbers in self.numbers.items()},
            {name: lists[shared] for name, lists in self.lists.items()},
        )

    @staticmethod
    def concat(parts: Sequence[FeatureTrace]) -> FeatureTrace:
        """Join the candidates of all batches of one request."""
        first = parts[0]
        known, numbers = dict(first.known), dict(first.numbers)
        if "item" in known:
            known["item"] = np.concatenate([part.known["item"] for part in parts])
        if "item" in numbers:
            numbers["item"] = np.concatenate([part.numbers["item"] for part in parts])
        return FeatureTrace(known, numbers, first.lists)
