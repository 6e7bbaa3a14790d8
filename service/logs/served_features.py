"""Values of feature columns of several requests, with their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ranking.encoding.vocabulary import IdArray
from ranking.schema import InputFeature, Owner
from ranking.served_log.schema import BUNDLE, COMPUTED, MISSING, REQUEST, STORE, stored_column
from service.engine.values import Values, is_set
from service.logs.served_arrays import Sources, concat_arrays, join_values, to_id_type
from service.logs.served_request import ServedRequest

OWNERS: tuple[Owner, ...] = ("user", "context", "item")


@dataclass(frozen=True)
class FeatureColumn:
    """A column of the model's features.

    Attributes:
        name: name of the column.
        owner: user, context or item.
        feature: feature that defines the type of its values.
        id_type: type of the ids that the model knows; None if it is not known, or the column holds numbers.
        counter: position among the columns of the owner's counters; None if the column is not one of them.
        is_history: whether the column is that of a history.
    """

    name: str
    owner: Owner
    feature: InputFeature
    id_type: pa.DataType | None
    counter: int | None
    is_history: bool

    @property
    def is_computed(self) -> bool:
        """Whether the column is that of a counter or history."""
        return self.is_history or self.counter is not None

    @property
    def label(self) -> str:
        """Name of the column in the table."""
        return stored_column(self.owner, self.name)


class RequestColumns:
    """Columns of one owner in several requests.

    Args:
        requests: columns of each request by name.

    Attributes:
        names: names of the columns that at least one request has.
    """

    def __init__(self, requests: Sequence[Mapping[str, Values]]) -> None:
        self._requests = requests
        self.names: Set[str] = set().union(*requests)

    def parts(self, name: str) -> list[Values | None]:
        """Return the values of a column, one part per request; None for requests that do not have it."""
        return [columns.get(name) for columns in self._requests]


class FeatureRows:
    """Feature values of several requests of one version.

    Args:
        requests: the requests.
    """

    def __init__(self, requests: Sequence[ServedRequest]) -> None:
        results = [request.result for request in requests]
        features = [result.prepared.request for result in results]
        traces = [result.trace for result in results]
        assert None not in traces, "the engine traces requests if the served log is on"
        self._computed = [trace for trace in traces if trace is not None]
        self._ones = [1] * len(results)
        self._counts = [len(part) for part in features]
        starts = np.cumsum(self._counts) - self._counts
        orders = [result.order for result in results]
        self._order: IdArray = np.concatenate(orders) + np.repeat(starts, list(map(len, orders)))
        self._order_array = pa.array(self._order)
        owners = {owner: [part.owners[owner] for part in features] for owner in OWNERS}
        self._sent = {owner: RequestColumns([part.columns for part in parts]) for owner, parts in owners.items()}
        self._stored = {owner: RequestColumns([part.stored for part in parts]) for owner, parts in owners.items()}
        missing = [result.missing for result in results]
        names, shared, items = missing[0].names, missing[0].shared_indices, missing[0].item_indices
        self._positions = {
            "user": {names[index]: i for i, index in enumerate(shared)},
            "item": {names[index]: i for i, index in enumerate(items)},
        }
        self._missing = {
            "user": np.stack([part.shared for part in missing]),
            "item": np.concatenate([part.items for part in missing]),
        }

    def unsent_sources(self, owner: Owner, columns: Sequence[FeatureColumn]) -> Sources:
        """Return the sources of an owner's values as if neither the requests nor the store had any [rows, columns]."""
        rows = len(self._order) if owner == "item" else len(self._counts)
        defaults = np.array([COMPUTED if column.is_computed else MISSING for column in columns], np.uint8)
        if owner not in self._computed[0].known:
            return np.tile(defaults, (rows, 1))
        in_table = {
            self._positions[owner][column.name]: i
            for i, column in enumerate(columns)
            if column.name in self._positions[owner] and not column.is_computed
        }
        of_known = defaults.copy()
        of_known[list(in_table.values())] = BUNDLE
        sources = np.tile(of_known, (rows, 1))
        missing = self._missing[owner]
        places = np.full(missing.shape[1], -1)
        places[list(in_table)] = list(in_table.values())
        missing_rows, missing_columns = np.divmod(np.flatnonzero(missing), missing.shape[1])  # faster than ``nonzero``
        is_logged = places[missing_columns] >= 0
        sources[missing_rows[is_logged], places[missing_columns[is_logged]]] = MISSING
        known = np.concatenate([part.known[owner] for part in self._computed])
        sources[~(known[self._order] if owner == "item" else known)] = defaults
        return sources

    def values(self, column: FeatureColumn, sources: Sources) -> pa.Array:
        """Return the values of a column [requests] or [candidates of the responses].

        The values are of the type null if none is set.

        Args:
            column: the column.
            sources: its part of ``unsent_sources``, in which the values of the requests and the store are marked.
        """
        sent, stored = self._join(column, self._sent[column.owner]), self._join(column, self._stored[column.owner])
        values = None
        if sent is not None or stored is not None:
            values = sent if stored is None else stored if sent is None else _first_set(sent, stored)
            if stored is not None:
                sources[is_set(stored)] = STORE
            if sent is not None:
                sources[is_set(sent)] = REQUEST
        if column.is_computed:
            computed = self._history(column) if column.is_history else self._counter(column)
            return computed if values is None else _first_set(values, computed)
        return pa.nulls(len(sources)) if values is None else to_id_type(values, column.id_type)

    def _join(self, column: FeatureColumn, columns: RequestColumns) -> pa.Array | None:
        """Return the values of a column, in the order of the responses; None if no request has the column."""
        if column.name not in columns.names:
            return None
        is_item = column.owner == "item"
        values = join_values(columns.parts(column.name), self._counts if is_item else self._ones, column.feature)
        return values.take(self._order_array) if is_item else values

    def _counter(self, column: FeatureColumn) -> pa.Array:
        numbers = np.concatenate([part.numbers[column.owner][:, column.counter] for part in self._computed])
        return pa.array(numbers[self._order] if column.owner == "item" else numbers, from_pandas=True)

    def _history(self, column: FeatureColumn) -> pa.Array:
        lists = join_values([part.lists[column.name] for part in self._computed], self._ones, column.feature)
        return to_id_type(lists, column.id_type)


def _first_set(values: pa.Array, others: pa.Array) -> pa.Array:
    """Return the values, or those of ``others`` where they are null."""
    both = concat_arrays([values, others])
    rows = np.arange(len(values))
    return both.take(pa.array(np.where(is_set(values), rows, rows + len(values))))
