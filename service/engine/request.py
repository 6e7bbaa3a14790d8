"""A request as the encoder takes it: what it says of its user, its context and its candidates, checked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ranking.schema import Owner
from service.engine.values import Values, concat


@dataclass(frozen=True)
class RawFeatures:
    """What is said of one owner's rows.

    Attributes:
        ids: one a row; None for contexts, which have none.
        columns: column → values; types are those of the column's features.
        stored: the same from a store; what ``columns`` leave out is taken from there before the bundle's table.
    """

    ids: Values | None
    columns: Mapping[str, Values]
    stored: Mapping[str, Values] = field(default_factory=dict)

    def slice(self, start: int, stop: int) -> RawFeatures:
        """The rows from ``start`` to ``stop``."""
        ids = None if self.ids is None else self.ids[start:stop]
        columns, stored = (
            {name: values[start:stop] for name, values in some.items()} for some in (self.columns, self.stored)
        )
        return RawFeatures(ids, columns, stored)


@dataclass(frozen=True)
class FeatureRequest:
    """What one request says, or several of the same form.

    Attributes:
        owners: owner → what is said of it; a row of users and of contexts is a request, one of items a candidate.
        counts: candidates of each request [requests].
        form: which columns are given or stored and of which types; requests of one form can be joined, None with none.
    """

    owners: Mapping[Owner, RawFeatures]
    counts: Sequence[int]
    signature: Hashable = None

    def __len__(self) -> int:
        """Candidates of all requests."""
        return sum(self.counts)

    @property
    def of_candidates(self) -> npt.NDArray[np.int64]:
        """The request that each candidate belongs to [candidates]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def slice(self, start: int, stop: int) -> FeatureRequest:
        """The candidates from ``start`` to ``stop`` of what is one request."""
        return FeatureRequest(
            {**self.owners, "item": self.owners["item"].slice(start, stop)}, [stop - start], self.signature
        )

    @staticmethod
    def concat(requests: Sequence[FeatureRequest]) -> FeatureRequest:
        """Requests of one form as one, so that they are encoded as soon as one of them alone."""
        if len(requests) == 1:
            return requests[0]
        owners: dict[Owner, RawFeatures] = {}
        for owner, first in requests[0].owners.items():
            each = [request.owners[owner] for request in requests]
            columns = {name: concat([given.columns[name] for given in each]) for name in first.columns}
            stored = {name: concat([given.stored[name] for given in each]) for name in first.stored}
            ids = None if first.ids is None else concat([given.ids for given in each])
            owners[owner] = RawFeatures(ids, columns, stored)
        return FeatureRequest(
            owners, [count for request in requests for count in request.counts], requests[0].signature
        )


@dataclass(frozen=True)
class StoreFeatures:
    """What a store has for one request.

    Attributes:
        columns: owner → column → values, as a request could give them.
        form: which columns these are and of which types, see ``Request``.
        degraded: something that the store should have given is not here, because something went wrong.
    """

    columns: Mapping[Owner, Mapping[str, Values]] = field(default_factory=dict)
    signature: Hashable = ()
    degraded: bool = False


EMPTY = StoreFeatures()
"""Where nothing was looked up."""
