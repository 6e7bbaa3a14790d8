"""Converts the answered requests of one model version to a table, column by column."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ranking.encoding.batch import Mask
from ranking.encoding.vocabulary import IdArray, Vocabulary
from ranking.schema import InputFeature, NumberFeature, Owner
from service.engine.model import LoadedModel
from service.engine.response import RankResult
from service.engine.values import Values
from service.served.arrays import Sources, concat_arrays, ids_from_list, is_set, join_values, to_id_type
from service.served.record import ServedRequest

MISSING, REQUEST, STORE, BUNDLE, COMPUTED = range(5)
"""Sources of a value: none, the request, the feature store, a table of the bundle, or a counter or history."""
TIME = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ENTITIES: tuple[Owner, Owner] = ("user", "item")
"""Owners with ids."""
HashUser = Callable[[int | str], str]


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
        return f"{self.owner}.{self.name}"


class ServedColumns:
    """Layout of the table of one model version.

    Args:
        model: The version.
        exclude: Names of feature columns that are left out.
        hash_user: Function that replaces user ids, or None.

    Attributes:
        name: Name of the model.
        version: Its version.
        features: Columns of features.
        hashes_users: Whether user ids are replaced.
    """

    def __init__(self, model: LoadedModel, exclude: Set[str], hash_user: HashUser | None) -> None:
        ranker, encoder = model.ranker, model.encoder
        self.name, self.version, self._hash_user = model.name, model.version, hash_user
        self.hashes_users = hash_user is not None
        histories = set() if ranker.derived is None else {history.name for history in ranker.schema.histories}
        self.features = []
        for owner, columns in encoder.readable.items():
            counters = encoder.counter_columns.get(owner, ())
            for name, feature in columns.items():
                if name not in exclude:
                    counter = counters.index(name) if name in counters else None
                    id_type = _id_type(model, feature)
                    self.features.append(FeatureColumn(name, owner, feature, id_type, counter, name in histories))
        self._id_types = {owner: _owner_id_type(model, owner) for owner in ENTITIES}
        clock = None if ranker.derived is None else ranker.derived.clock
        self._zone = None if clock is None else clock.zone

    def table(self, requests: Sequence[ServedRequest]) -> pa.Table:
        """Convert requests to a table with one row per request; candidates are in the order of the response."""
        results = [request.result for request in requests]
        lengths = [len(result.total) for result in results]
        columns: dict[str, pa.Array] = {
            "request_id": pa.array([_text(request.request_id) for request in requests], pa.string()),
            "time": self._times(requests),
            "user_id": self._users(requests),
            "degraded": pa.array([request.degraded for request in requests], pa.bool_()),
            "counters_as_of": _as_of([result.counters_as_of for result in results]),
            "tasks": pa.array([result.tasks for result in results], pa.list_(pa.string())),
            "item_id": _to_lists(self._items(requests), lengths),
            "score": _to_lists(pa.array(np.concatenate([result.total for result in results])), lengths),
        }
        columns |= _scores(results)
        rows = _Rows(requests)
        for column in self.features:
            values, sources = rows.values(column)
            source = pa.array(sources)
            if column.owner == "item":
                values, source = _to_lists(values, lengths), _to_lists(source, lengths)
            columns[column.label] = values
            columns[f"source.{column.name}"] = source
        return pa.table(columns)

    def _times(self, requests: Sequence[ServedRequest]) -> pa.Array:
        """Return the times that counters used."""
        to_unix = time.time() - time.monotonic()
        microseconds = []
        for request in requests:
            clock_times = request.result.used.request.times
            if request.time is not None:
                microseconds.append((request.time - EPOCH) // timedelta(microseconds=1))
            elif clock_times and self._zone is not None:
                microseconds.append(clock_times[0])
            else:
                microseconds.append(int((request.arrived + to_unix) * 1e6))
        return pa.array(microseconds, pa.int64()).cast(TIME)

    def _users(self, requests: Sequence[ServedRequest]) -> pa.Array:
        ids: list[Any] = [request.user for request in requests]
        if self._hash_user is not None:
            return pa.array([None if user is None else self._hash_user(user) for user in ids], pa.string())
        return to_id_type(ids_from_list(ids), self._id_types["user"])

    def _items(self, requests: Sequence[ServedRequest]) -> pa.Array:
        parts = [request.result.ids for request in requests]
        if all(isinstance(part, np.ndarray) for part in parts):
            ids = pa.array(np.concatenate(parts))
        elif all(isinstance(part, list) for part in parts):
            ids = ids_from_list(list(chain.from_iterable(parts)))
        else:
            ids = concat_arrays([part if isinstance(part, pa.Array) else ids_from_list(list(part)) for part in parts])
        return to_id_type(ids, self._id_types["item"])


class _Rows:
    """Feature values of several requests of one version.

    Args:
        requests: The requests.
    """

    def __init__(self, requests: Sequence[ServedRequest]) -> None:
        used = [request.result.used for request in requests]
        self._features = [part.request for part in used]
        self._computed = [part.computed for part in used]
        self._ones = [1] * len(used)
        self._counts = [len(part) for part in self._features]
        starts = np.cumsum(self._counts) - self._counts
        orders = [part.order for part in used]
        self._order: IdArray = np.concatenate(orders) + np.repeat(starts, list(map(len, orders)))
        self._order_array = pa.array(self._order)
        missing = [request.result.missing for request in requests]
        self._missing = {
            "user": np.stack([part.shared for part in missing]),
            "item": np.concatenate([part.items for part in missing]),
        }
        names = missing[0].names
        self._positions = {
            "user": {names[index]: i for i, index in enumerate(missing[0].shared_indices)},
            "item": {names[index]: i for i, index in enumerate(missing[0].item_indices)},
        }
        self._known = {owner: self._join_known(owner) for owner in ENTITIES}

    def values(self, column: FeatureColumn) -> tuple[pa.Array, Sources]:
        """Return the values of a column and their sources [requests] or [candidates of the responses]."""
        sent, stored = self._join(column, "columns"), self._join(column, "stored")
        sources = np.where(is_set(sent), REQUEST, np.where(is_set(stored), STORE, MISSING)).astype(np.uint8)
        values = sent
        if not pa.types.is_null(stored.type):
            values = _first_set(sent, stored)
        if not column.is_computed:
            self._mark_bundle(column, sources)
            if pa.types.is_null(values.type):
                values = values.cast(_default_type(column))
            return to_id_type(values, column.id_type), sources
        computed = self._history(column) if column.is_history else self._counter(column)
        sources[sources == MISSING] = COMPUTED
        if pa.types.is_null(values.type):
            return computed, sources
        return _first_set(values, computed), sources

    def _join(self, column: FeatureColumn, attribute: str) -> pa.Array:
        """Return the values of a column in the requests or the store, in the order of the responses."""
        parts: list[Values | None] = [
            getattr(request.owners[column.owner], attribute).get(column.name) for request in self._features
        ]
        is_item = column.owner == "item"
        if not any(part is not None for part in parts):
            return pa.nulls(len(self._order) if is_item else len(parts))
        values = join_values(parts, self._counts if is_item else self._ones, column.feature)
        return values.take(self._order_array) if is_item else values

    def _mark_bundle(self, column: FeatureColumn, sources: Sources) -> None:
        """Mark the values that a table of the bundle supplied."""
        known = self._known.get(column.owner)
        if known is not None and column.name in self._positions[column.owner]:
            absent = self._missing[column.owner][:, self._positions[column.owner][column.name]]
            sources[(sources == MISSING) & known & ~absent] = BUNDLE

    def _join_known(self, owner: Owner) -> Mask | None:
        if owner not in self._computed[0].known:
            return None
        known = np.concatenate([part.known[owner] for part in self._computed])
        return known[self._order] if owner == "item" else known

    def _counter(self, column: FeatureColumn) -> pa.Array:
        numbers = np.concatenate([part.numbers[column.owner][:, column.counter] for part in self._computed])
        return pa.array(numbers[self._order] if column.owner == "item" else numbers, from_pandas=True)

    def _history(self, column: FeatureColumn) -> pa.Array:
        return concat_arrays([part.lists[column.name] for part in self._computed])


def _first_set(values: pa.Array, others: pa.Array) -> pa.Array:
    """Return the values, or those of ``others`` where they are null."""
    both = concat_arrays([values, others])
    rows = np.arange(len(values))
    return both.take(pa.array(np.where(is_set(values), rows, rows + len(values))))


def _scores(results: Sequence[RankResult]) -> dict[str, pa.Array]:
    """Return the scores of each task; null for requests that did not score it."""
    columns = {}
    for task in dict.fromkeys(chain.from_iterable(result.tasks for result in results)):
        scored = [result.scores[:, result.tasks.index(task)] if task in result.tasks else None for result in results]
        present = [len(part) if part is not None else 0 for part in scored]
        values = pa.array(np.concatenate([part for part in scored if part is not None]))
        mask = np.array([part is None for part in scored])
        columns[f"scores.{task}"] = _to_lists(values, present, mask if mask.any() else None)
    return columns


def _to_lists(values: pa.Array, lengths: Sequence[int], mask: Mask | None = None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=None if mask is None else pa.array(mask))


def _as_of(texts: Sequence[str | None]) -> pa.Array:
    times = {text: None if text is None else datetime.fromisoformat(text) for text in set(texts)}
    zoned = any(time is not None and time.tzinfo is not None for time in times.values())
    return pa.array([times[text] for text in texts], TIME if zoned else pa.timestamp("us"))


def _text(text: str) -> str:
    """Return text that UTF-8 can represent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _id_type(model: LoadedModel, feature: InputFeature) -> pa.DataType | None:
    if isinstance(feature, NumberFeature):
        return None
    mapping = model.ranker.encoder.id_mappings[feature.table]
    return mapping.ids.type if isinstance(mapping, Vocabulary) else None


def _owner_id_type(model: LoadedModel, owner: Owner) -> pa.DataType | None:
    """Return the type of the ids of users or items; None if the model does not know any."""
    index, feature = model.ranker.encoded.get(owner), model.ranker.schema.id_feature(owner)
    if index is not None:
        return index.id_type
    return None if feature is None else _id_type(model, feature)


def _default_type(column: FeatureColumn) -> pa.DataType:
    """Return the type of a column without values."""
    if isinstance(column.feature, NumberFeature):
        return pa.float64()
    dtype = column.id_type or pa.string()
    return pa.large_list(dtype) if column.feature.kind in ("bag", "sequence") else dtype
