"""A request as the encoder takes it: what it says of its user, its context and its candidates, checked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ranking.schema import Owner
from service.engine.values import Values, joined


@dataclass(frozen=True)
class Given:
    """What is said of one owner's rows.

    Attributes:
        ids: one a row; None for contexts, which have none.
        columns: column → values; types are those of the column's features.
        stored: the same from a store; what ``columns`` leave out is taken from there before the bundle's table.
    """

    ids: Values | None
    columns: Mapping[str, Values]
    stored: Mapping[str, Values] = field(default_factory=dict)

    def slice(self, start: int, stop: int) -> Given:
        """The rows from ``start`` to ``stop``."""
        ids = None if self.ids is None else self.ids[start:stop]
        columns, stored = (
            {name: values[start:stop] for name, values in some.items()} for some in (self.columns, self.stored)
        )
        return Given(ids, columns, stored)


@dataclass(frozen=True)
class Request:
    """What one request says, or several of the same form.

    Attributes:
        owners: owner → what is said of it; a row of users and of contexts is a request, one of items a candidate.
        counts: candidates of each request [requests].
        form: which columns are given or stored and of which types; requests of one form can be joined, None with none.
    """

    owners: Mapping[Owner, Given]
    counts: Sequence[int]
    form: Hashable = None

    def __len__(self) -> int:
        """Candidates of all requests."""
        return sum(self.counts)

    @property
    def of_candidates(self) -> npt.NDArray[np.int64]:
        """The request that each candidate belongs to [candidates]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def slice(self, start: int, stop: int) -> Request:
        """The candidates from ``start`` to ``stop`` of what is one request."""
        return Request({**self.owners, "item": self.owners["item"].slice(start, stop)}, [stop - start], self.form)

    @staticmethod
    def joined(requests: Sequence[Request]) -> Request:
        """Requests of one form as one, so that they are encoded as soon as one of them alone."""
        if len(requests) == 1:
            return requests[0]
        owners: dict[Owner, Given] = {}
        for owner, first in requests[0].owners.items():
            each = [request.owners[owner] for request in requests]
            columns = {name: joined([given.columns[name] for given in each]) for name in first.columns}
            stored = {name: joined([given.stored[name] for given in each]) for name in first.stored}
            ids = None if first.ids is None else joined([given.ids for given in each])
            owners[owner] = Given(ids, columns, stored)
        return Request(owners, [count for request in requests for count in request.counts], requests[0].form)
