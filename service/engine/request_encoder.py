"""Encodes requests for a ranker.

Gives the same numbers as ``Encoder.encode`` on the completed table, but faster: features that a request leaves out are
looked up already encoded, and columns of numbers are scaled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.counters.stored_sums import Root, StoredSums
from ranking.encoding.batch import EncodedBatch, Mask
from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import FeatureGroup, RequestBatch, SharedItemSplitter
from ranking.encoding.vocabulary import FloatArray, HashBuckets, IdArray
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import CrossFeature, Owner, Schema
from service.engine.counter_encoder import CounterEncoder
from service.engine.entity_encoder import EntityEncoder, EntityFeatures
from service.engine.feature_trace import FeatureTrace
from service.engine.request import FeatureRequest
from service.engine.values import Values

USER_ID, ITEM_ID = "user.id", "items.id"
"""Names of the ids among missing features: the fields of a request that hold them."""


@dataclass(frozen=True)
class MissingFeatures:
    """Missing features of candidates of one request, by the names under which a request can send them.

    Attributes:
        names: columns of all features but those of counters and histories, in schema order; ``USER_ID`` and
            ``ITEM_ID`` stand for the id columns.
        shared_indices: indices in ``names`` of the features that the candidates share, ascending.
        item_indices: indices in ``names`` of the features of items, ascending.
        shared: whether each shared feature is missing [shared features].
        items: whether each item feature is missing [candidates, item features].
    """

    names: Sequence[str]
    shared_indices: Sequence[int]
    item_indices: Sequence[int]
    shared: Mask
    items: Mask

    @property
    def count(self) -> int:
        """Number of missing values over all candidates and features."""
        return int(self.shared.sum()) * len(self.items) + int(self.items.sum())

    def take(self, rows: npt.NDArray[np.int64]) -> MissingFeatures:
        """Select candidates by position, in the given order."""
        return MissingFeatures(
            self.names, self.shared_indices, self.item_indices, self.shared, self.items.take(rows, 0)
        )

    @staticmethod
    def concat(parts: Sequence[MissingFeatures]) -> MissingFeatures:
        """Join the candidates of all batches of one request."""
        return replace(parts[0], items=np.concatenate([part.items for part in parts]))

    def mask(self) -> Mask:
        """Return whether each feature of each candidate is missing [candidates, features]."""
        mask = np.empty((len(self.items), len(self.names)), np.bool_)
        mask[:, self.shared_indices] = self.shared
        mask[:, self.item_indices] = self.items
        return mask

    def positions(self) -> dict[str, npt.NDArray[np.int64]]:
        """Map each feature that some candidate lacks to the positions of these candidates."""
        mask = self.mask()
        return {self.names[i]: np.flatnonzero(mask[:, i]) for i in np.flatnonzero(mask.any(0)).tolist()}

    def patterns(self) -> tuple[dict[bytes, list[str]], list[bytes]]:
        """Return the missing features by pattern of missing item features, and the pattern of each candidate."""
        shared = list(compress(self.shared_indices, self.shared.tolist()))
        if np.count_nonzero(self.items):
            rows = np.ascontiguousarray(self.items).view(np.dtype((np.void, len(self.item_indices))))
            patterns: list[bytes] = rows[:, 0].tolist()
        else:
            patterns = [b""] * len(self.items)
        names = {
            pattern: [self.names[i] for i in sorted([*shared, *compress(self.item_indices, pattern)])]
            for pattern in dict.fromkeys(patterns)
        }
        return names, patterns


class MissingColumns:
    """Columns of a feature group whose absence a response reports, with the id of the group's owner.

    Args:
        names: as ``MissingFeatures.names``.
        fields: the name of each feature of the group, in the order of ``EncodedBatch.missing``.
        id_name: name of the id; it is reported even if no feature reads it, provided that it is among ``names``.

    Attributes:
        indices: indices of the group's columns in ``names``, ascending.
    """

    def __init__(self, names: Sequence[str], fields: Sequence[str], id_name: str) -> None:
        self.indices = [i for i, name in enumerate(names) if name in fields or name == id_name]
        group = [names[i] for i in self.indices]
        self._id = group.index(id_name) if id_name in group else None
        self._id_is_feature = id_name in fields
        # Features of one column are missing together, so that the first one stands for all.
        features = [fields.index(name) if name in fields else 0 for name in group]
        self._features = None if features == list(range(len(fields))) else np.array(features, np.intp)

    def mask(self, missing: Mask, unseen: Mask | None) -> Mask:
        """Return whether each column is missing [rows, columns]; an id is missing if it is absent or unseen.

        Args:
            missing: as ``EncodedBatch.missing``.
            unseen: whether the ranker has never seen the id [rows]; None if it does not know any.
        """
        mask = missing.copy() if self._features is None else missing.take(self._features, 1)
        if self._id is not None:
            if not self._id_is_feature:
                mask[:, self._id] = False
            if unseen is not None:
                mask[:, self._id] |= unseen
        return mask


class RequestEncoder:
    """Encodes requests for one ranker.

    Args:
        ranker: ranker that scores the requests.

    Attributes:
        splitter: splits features into those that candidates share and those of items.
        readable: feature that defines the type of each column, by owner and column; an id feature takes precedence.
        counter_columns: columns of the counters of each owner.
    """

    def __init__(self, ranker: FrozenRanker) -> None:
        self.splitter = SharedItemSplitter(ranker.encoder)
        owners: list[Owner] = ["user", "context", "item"]
        self._encoders = {owner: EntityEncoder(ranker, owner) for owner in owners}
        shared_schemas = {owner: encoder.schema for owner, encoder in self._encoders.items()}
        item_schemas: dict[Owner, Schema] = {"item": shared_schemas.pop("item")}
        self._shared = FeatureGroupAssembler(ranker.encoder, self.splitter.shared, shared_schemas)
        self._items = FeatureGroupAssembler(ranker.encoder, self.splitter.items, item_schemas)
        inputs, columns = ranker.schema.inputs, ranker.schema.columns
        id_names = {columns.user: USER_ID, columns.item: ITEM_ID}
        fields = [id_names.get(feature.column, feature.column) for feature in inputs]
        id_owners: tuple[tuple[Owner, str], ...] = (("user", USER_ID), ("item", ITEM_ID))
        known_ids = [name for owner, name in id_owners if self._encoders[owner].knows_ids]
        counter_columns = ranker.schema.counter_columns
        self._names = tuple(dict.fromkeys([*(name for name in fields if name not in counter_columns), *known_ids]))
        self._clock = None if ranker.counter_features is None else ranker.counter_features.clock
        self._counters = (
            None if ranker.counter_features is None else CounterEncoder(ranker.counter_features, self._encoders)
        )
        self.counter_columns = {} if self._counters is None else self._counters.columns
        groups = ((self.splitter.shared, USER_ID), (self.splitter.items, ITEM_ID))
        self._missing_columns = [
            MissingColumns(self._names, [fields[i] for i in group.missing], id_name) for group, id_name in groups
        ]
        self.readable = {owner: encoder.readable for owner, encoder in self._encoders.items()}

    def __call__(self, request: FeatureRequest) -> RequestBatch:
        """Encode a request, or several concatenated requests; see ``encode``."""
        return self.encode(request, traced=False)[0]

    def encode(self, request: FeatureRequest, *, traced: bool) -> tuple[RequestBatch, FeatureTrace | None]:
        """Encode a request, or several concatenated requests.

        Args:
            request: features of the requests.
            traced: whether to return the values that the requests do not contain, too.

        Raises:
            InvalidInputError: a number is not finite or outside the domain of its transform, or text is not an
                integer where ids are integers. The error names column and row.
        """
        request_index = request.request_index
        entities = {owner: encoder.encode(request.owners[owner]) for owner, encoder in self._encoders.items()}
        numbers: Mapping[Owner, FloatArray] = {}
        lists: Mapping[str, Values] = {}
        if self._counters is not None:
            numbers, lists = self._counters.write(request, entities, request_index)
        hashes = {
            owner: {name: entities[owner].hashes[:, i] for i, name in enumerate(encoder.parts)}
            for owner, encoder in self._encoders.items()
        }
        shared_hashes = hashes["user"] | hashes["context"]
        item_hashes = hashes["item"] | {name: column[request_index] for name, column in shared_hashes.items()}
        shared, items = self._shared.assemble(entities, shared_hashes), self._items.assemble(entities, item_hashes)
        batch = RequestBatch(shared, items, request_index, entities["user"].unseen, entities["item"].unseen)
        if not traced:
            return batch, None
        known = {owner: part.known for owner, part in entities.items() if part.known is not None}
        return batch, FeatureTrace(known, {owner: v.astype(np.float32) for owner, v in numbers.items()}, lists)

    def with_counters(self, request: FeatureRequest, time: datetime | None, sums: StoredSums | None) -> FeatureRequest:
        """Return a single request with what its counters need, if the ranker has counters or histories.

        Args:
            request: the request.
            time: its time; default: now.
            sums: sums from the feature store.
        """
        if self._clock is None:
            return request
        return replace(request, times=[self._clock.now() if time is None else self._clock.at(time)], sums=sums)

    def counter_roots(self, request: FeatureRequest) -> dict[Root, set[int]]:
        """Return the hashes of the roots whose sums a single request needs, by kind; empty without counters.

        Raises:
            InvalidInputError: text is not an integer where ids are integers.
        """
        return {} if self._counters is None else self._counters.roots(request)

    @property
    def counters_until(self) -> int | None:
        """Time of the last impression in the bundle's counters in microseconds; None if the ranker has none."""
        return None if self._clock is None else self._clock.until

    def counters_as_of(self, sums: StoredSums | None) -> str | None:
        """Return the time of the last impression in the counters; None if the ranker has none."""
        if self._clock is None:
            return None
        return (self._clock if sums is None else replace(self._clock, until=sums.state.until)).text

    def missing(self, batch: RequestBatch, counts: Sequence[int]) -> Iterator[MissingFeatures]:
        """Yield the missing features of each request.

        Args:
            batch: encoded requests.
            counts: number of candidates of each request.
        """
        shared_columns, item_columns = self._missing_columns
        shared_mask = shared_columns.mask(batch.shared.missing, batch.unseen_users)
        item_mask = item_columns.mask(batch.items.missing, batch.unseen_items)
        stop = 0
        for count, shared in zip(counts, shared_mask, strict=True):
            stop += count
            items = item_mask[stop - count : stop]
            yield MissingFeatures(self._names, shared_columns.indices, item_columns.indices, shared, items)


class FeatureGroupAssembler:
    """Joins the encoded features of several owners into one feature group, and adds the crosses of the group.

    Args:
        encoder: encoder of all features.
        group: feature group to assemble.
        schemas: features of each owner without crosses, in the order of its ``EntityFeatures``.
    """

    def __init__(self, encoder: Encoder, group: FeatureGroup, schemas: Mapping[Owner, Schema]) -> None:
        self._owners = list(schemas)
        parts = list(schemas.values())
        crosses = [feature for feature in group.singles if isinstance(feature, CrossFeature)]
        self._crosses = [(cross.of, encoder.id_mappings[cross.table]) for cross in crosses]
        singles = [*chain.from_iterable(part.categoricals for part in parts), *crosses]
        self._ids = _positions([f.name for f in group.singles], [f.name for f in singles])
        self._bags = _positions([f.name for f in group.bags], [f.name for part in parts for f in part.bags])
        dense = _dense_columns(encoder, encoder.schema)
        available = [column for part in parts for column in _dense_columns(encoder, part)]
        self._dense = _positions([dense[i] for i in group.dense], available)
        inputs = [encoder.schema.inputs[i].name for i in group.missing]
        self._missing = _positions(inputs, [f.name for part in parts for f in part.inputs])

    def assemble(self, entities: Mapping[Owner, EntityFeatures], hashes: Mapping[str, IdArray]) -> EncodedBatch:
        """Return the columns of the group.

        Args:
            entities: encoded features by owner.
            hashes: hashes of the cross parts by feature name [rows].
        """
        parts = [entities[owner] for owner in self._owners]
        if len(parts) == 1 and not self._crosses:
            return parts[0].to_encoded()
        ids = [part.ids for part in parts]
        for names, id_mapping in self._crosses:
            assert isinstance(id_mapping, HashBuckets)
            ids.append(id_mapping.cross_rows([hashes[name] for name in names])[:, None])
        bags = [bag for part in parts for bag in part.bags]
        return EncodedBatch(
            np.concatenate(ids, 1).take(self._ids, 1),
            tuple(bags[i] for i in self._bags),
            np.concatenate([part.dense for part in parts], 1).take(self._dense, 1),
            np.concatenate([part.missing for part in parts], 1).take(self._missing, 1),
        )


def _dense_columns(encoder: Encoder, schema: Schema) -> list[tuple[str, bool]]:
    """Return the feature name of each dense column, and whether the column is its missing indicator."""
    names = [number.name for number in schema.numerics]
    indicated = [name for name in names if encoder.scales[name].has_missing_indicator]
    return [*((name, False) for name in names), *((name, True) for name in indicated)]


def _positions(columns: Sequence[Any], available: Sequence[Any]) -> npt.NDArray[np.intp]:
    """Return the position of each column among the available ones."""
    return np.array([available.index(column) for column in columns], np.intp)
