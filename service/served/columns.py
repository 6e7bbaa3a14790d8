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
OWNERS: tuple[Owner, ...] = ("user", "context", "item")
ENTITIES: tuple[Owner, ...] = ("user", "item")
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
        """Convert requests to a table with one row per request; candidates are in the order of the response.

        A column of feature values is absent if no request has a value for it.
        """
        results = [request.result for request in requests]
        offsets = _offsets([len(result.total) for result in results])
        columns: dict[str, pa.Array] = {
            "request_id": pa.array([_text(request.request_id) for request in requests], pa.string()),
            "time": self._times(requests),
            "user_id": self._users(requests),
            "degraded": pa.array([request.degraded for request in requests], pa.bool_()),
            "counters_as_of": _as_of([result.counters_as_of for result in results]),
            "tasks": pa.array([result.tasks for result in results], pa.list_(pa.string())),
            "item_id": _to_lists(self._items(requests), offsets),
            "score": _to_lists(pa.array(np.concatenate([result.total for result in results])), offsets),
        }
        columns |= _scores(results, offsets)
        rows = _Rows(requests)
        for column in self.features:
            values, sources = rows.values(column)
            source = pa.array(sources)
            if not pa.types.is_null(values.type):
                columns[column.label] = _to_lists(values, offsets) if column.owner == "item" else values
            columns[f"source.{column.name}"] = _to_lists(source, offsets) if column.owner == "item" else source
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
        self._present = {
            (owner, attribute): set().union(*(getattr(part.owners[owner], attribute) for part in self._features))
            for owner in OWNERS
            for attribute in ("columns", "stored")
        }
        missing = [request.result.missing for request in requests]
        names, shared, items = missing[0].names, missing[0].shared_indices, missing[0].item_indices
        self._positions = {
            "user": {names[index]: i for i, index in enumerate(shared)},
            "item": {names[index]: i for i, index in enumerate(items)},
        }
        self._tables = {
            "user": self._in_tables("user", np.stack([part.shared for part in missing])),
            "item": self._in_tables("item", np.concatenate([part.items for part in missing])),
        }

    def _in_tables(self, owner: Owner, missing: Mask) -> Sources | None:
        """Return the source of each value that neither the request nor the store has [columns, rows].

        Args:
            owner: User or item.
            missing: Which features are missing [rows, columns].
        """
        if owner not in self._computed[0].known:
            return None
        known = np.concatenate([part.known[owner] for part in self._computed])
        known = known[self._order] if owner == "item" else known
        sources: Sources = np.where(known & ~missing.T, np.uint8(BUNDLE), np.uint8(MISSING))
        return sources

    def values(self, column: FeatureColumn) -> tuple[pa.Array, Sources]:
        """Return the values of a column and their sources [requests] or [candidates of the responses].

        The values are of the type null if none is set.
        """
        sent, stored = self._join(column, "columns"), self._join(column, "stored")
        sources = self._unsent_sources(column)
        values = None
        if sent is not None or stored is not None:
            values = sent if stored is None else stored if sent is None else _first_set(sent, stored)
            if stored is not None:
                sources = np.where(is_set(stored), STORE, sources).astype(np.uint8)
            if sent is not None:
                sources = np.where(is_set(sent), REQUEST, sources).astype(np.uint8)
        if column.is_computed:
            computed = self._history(column) if column.is_history else self._counter(column)
            return computed if values is None else _first_set(values, computed), sources
        return pa.nulls(len(sources)) if values is None else to_id_type(values, column.id_type), sources

    def _unsent_sources(self, column: FeatureColumn) -> Sources:
        """Return the sources of the values as if neither the request nor the store had any."""
        if column.is_computed:
            return np.full(self._rows(column), COMPUTED, np.uint8)
        tables = self._tables.get(column.owner)
        if tables is None or column.name not in self._positions[column.owner]:
            return np.full(self._rows(column), MISSING, np.uint8)
        sources: Sources = tables[self._positions[column.owner][column.name]]
        return sources

    def _rows(self, column: FeatureColumn) -> int:
        return len(self._order) if column.owner == "item" else len(self._counts)

    def _join(self, column: FeatureColumn, attribute: str) -> pa.Array | None:
        """Return the values of a column in the requests or the store, in the order of the responses."""
        if column.name not in self._present[column.owner, attribute]:
            return None
        parts: list[Values | None] = [
            getattr(request.owners[column.owner], attribute).get(column.name) for request in self._features
        ]
        is_item = column.owner == "item"
        values = join_values(parts, self._counts if is_item else self._ones, column.feature)
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


def _scores(results: Sequence[RankResult], offsets: pa.Array) -> dict[str, pa.Array]:
    """Return the scores of each task; null for requests that did not score it."""
    if all(result.tasks == results[0].tasks for result in results):
        scores = np.ascontiguousarray(np.concatenate([result.scores for result in results]).T)
        return {
            f"scores.{task}": _to_lists(pa.array(column), offsets)
            for task, column in zip(results[0].tasks, scores, strict=True)
        }
    columns = {}
    for task in dict.fromkeys(chain.from_iterable(result.tasks for result in results)):
        scored = [task in result.tasks for result in results]
        parts = [result.scores[:, result.tasks.index(task)] for result in results if task in result.tasks]
        lengths = [len(result.scores) if has_task else 0 for result, has_task in zip(results, scored, strict=True)]
        mask = pa.array(np.logical_not(scored))
        columns[f"scores.{task}"] = _to_lists(pa.array(np.concatenate(parts)), _offsets(lengths), mask)
    return columns


def _to_lists(values: pa.Array, offsets: pa.Array, mask: pa.Array | None = None) -> pa.Array:
    return pa.ListArray.from_arrays(offsets, values, mask=mask)


def _offsets(lengths: Sequence[int]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


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
