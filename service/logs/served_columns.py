"""Converts the answered requests of one model version to a table, column by column."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ranking.encoding.vocabulary import Vocabulary
from ranking.schema import ID_OWNERS, InputFeature, NumberFeature, Owner
from ranking.served_log.schema import source_column
from service.engine.model import LoadedModel
from service.engine.response import RankResult
from service.logs.served_arrays import concat_arrays, ids_from_list, to_binary, to_id_type
from service.logs.served_features import OWNERS, FeatureColumn, FeatureRows
from service.logs.served_request import ServedRequest

TIME = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HashUser = Callable[[int | str], str]


class ServedColumns:
    """Layout of the table of one model version.

    Args:
        model: the version.
        exclude: names of feature columns that are left out.
        hash_user: function that replaces user ids, or None.

    Attributes:
        name: name of the model.
        version: its version.
        features: columns of features.
        hashes_users: whether user ids are replaced.
    """

    def __init__(self, model: LoadedModel, exclude: Set[str], hash_user: HashUser | None) -> None:
        ranker, encoder = model.ranker, model.encoder
        self.name, self.version, self._hash_user = model.name, model.version, hash_user
        self.hashes_users = hash_user is not None
        histories = set() if ranker.counter_features is None else {history.name for history in ranker.schema.histories}
        self.features = []
        for owner, columns in encoder.readable.items():
            counters = encoder.counter_columns.get(owner, ())
            for name, feature in columns.items():
                if name not in exclude:
                    counter = counters.index(name) if name in counters else None
                    id_type = _id_type(model, feature)
                    self.features.append(FeatureColumn(name, owner, feature, id_type, counter, name in histories))
        self._id_types = {owner: _owner_id_type(model, owner) for owner in ID_OWNERS}
        clock = None if ranker.counter_features is None else ranker.counter_features.clock
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
            "counters_as_of": _as_of([result.prepared.counters_as_of for result in results]),
            "tasks": pa.array([result.tasks for result in results], pa.list_(pa.string())),
            "item_id": _to_lists(self._items(requests), offsets),
            "score": _to_lists(pa.array(np.concatenate([result.total for result in results])), offsets),
        }
        columns |= _scores(results, offsets)
        rows = FeatureRows(requests)
        for owner in OWNERS:
            columns |= self._features(owner, rows, offsets)
        return pa.table(columns)

    def _features(self, owner: Owner, rows: FeatureRows, offsets: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of an owner's feature values and their sources."""
        features = [column for column in self.features if column.owner == owner]
        if not features:
            return {}
        sources = rows.unsent_sources(owner, features)
        columns = {column.label: rows.values(column, sources[:, i]) for i, column in enumerate(features)}
        columns = {label: values for label, values in columns.items() if not pa.types.is_null(values.type)}
        columns[source_column(owner)] = to_binary(sources)
        return {label: _to_lists(values, offsets) for label, values in columns.items()} if owner == "item" else columns

    def _times(self, requests: Sequence[ServedRequest]) -> pa.Array:
        """Return the times that counters used."""
        to_unix = time.time() - time.monotonic()
        microseconds = []
        for request in requests:
            clock_times = request.result.prepared.request.times
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
    return mapping.id_type if isinstance(mapping, Vocabulary) else None


def _owner_id_type(model: LoadedModel, owner: Owner) -> pa.DataType | None:
    """Return the type of the ids of users or items; None if the model does not know any."""
    index, feature = model.ranker.encoded.get(owner), model.ranker.schema.id_feature(owner)
    if index is not None:
        return index.id_type
    return None if feature is None else _id_type(model, feature)
