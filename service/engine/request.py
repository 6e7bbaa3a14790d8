"""Features of requests, as the encoder and the feature store exchange them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.counters.stored_sums import StoredSums
from ranking.schema import Owner
from service.engine.values import Values, concat


@dataclass(frozen=True)
class RawFeatures:
    """Feature values of one owner (user, context or item), not encoded.

    A value is taken from ``columns``, else from ``stored``, else from the bundle's tables.

    Attributes:
        ids: id of each row; None for a user without one, and for contexts, which have none. An Arrow array contains
            strings without nulls.
        columns: values of the request by column, in the types of the column's features once they are validated; until
            then, Arrow arrays may have any type.
        stored: values of the feature store by column, in the same types.
    """

    ids: Values
    columns: Mapping[str, Values]
    stored: Mapping[str, Values] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    def arrow_bytes(self) -> int:
        """Return the number of bytes of the Arrow columns of the request, after decompression."""
        return sum(column.nbytes for column in (self.ids, *self.columns.values()) if isinstance(column, pa.Array))

    def slice(self, start: int, stop: int) -> RawFeatures:
        """Return the rows [start, stop)."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        stored = {name: values[start:stop] for name, values in self.stored.items()}
        return RawFeatures(self.ids[start:stop], columns, stored)


@dataclass(frozen=True)
class FeatureRequest:
    """Validated features of one request, or of several with the same signature.

    Attributes:
        owners: features by owner. Users and contexts have one row per request, items one row per candidate.
        counts: number of candidates of each request [requests].
        signature: names, sources and types of the columns. Requests with equal signatures can be concatenated; a
            request with None cannot.
        times: time of each request on the clock of the ranker's counters, see ``StateClock`` [requests]; empty if the
            ranker has no counters.
        sums: sums of counters from the feature store; None: those of the bundle count.
    """

    owners: Mapping[Owner, RawFeatures]
    counts: Sequence[int]
    signature: Hashable = None
    times: Sequence[int] = ()
    sums: StoredSums | None = None

    def __len__(self) -> int:
        """Return the number of candidates of all requests."""
        return sum(self.counts)

    @property
    def request_index(self) -> npt.NDArray[np.int64]:
        """Index of the request of each candidate [candidates] int64."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def slice(self, start: int, stop: int) -> FeatureRequest:
        """Return the candidates [start, stop) of a single request."""
        items = self.owners["item"].slice(start, stop)
        return FeatureRequest({**self.owners, "item": items}, [stop - start], self.signature, self.times, self.sums)

    @staticmethod
    def concat(requests: Sequence[FeatureRequest]) -> FeatureRequest:
        """Concatenate requests with one signature; encoding them together costs little more than encoding one."""
        if len(requests) == 1:
            return requests[0]
        owners: dict[Owner, RawFeatures] = {}
        for owner, first in requests[0].owners.items():
            parts = [request.owners[owner] for request in requests]
            columns = {name: concat([part.columns[name] for part in parts]) for name in first.columns}
            stored = {name: concat([part.stored[name] for part in parts]) for name in first.stored}
            owners[owner] = RawFeatures(concat([part.ids for part in parts]), columns, stored)
        counts = [count for request in requests for count in request.counts]
        times = [time for request in requests for time in request.times]
        sums = [request.sums for request in requests if request.sums is not None]
        joined = StoredSums.concat(sums) if sums else None
        return FeatureRequest(owners, counts, requests[0].signature, times, joined)


@dataclass(frozen=True)
class StoreFeatures:
    """Features that the feature store supplies for one request.

    Attributes:
        columns: values by owner and column, in the types that a request may use.
        signature: names and types of the columns, part of ``FeatureRequest.signature``.
        degraded: whether features are absent because of a failure of the store.
        sums: sums of counters; None if the store has none, or older ones than the bundle.
    """

    columns: Mapping[Owner, Mapping[str, Values]] = field(default_factory=dict)
    signature: Hashable = ()
    degraded: bool = False
    sums: StoredSums | None = None


EMPTY = StoreFeatures()
"""Result when no look-up was necessary."""
