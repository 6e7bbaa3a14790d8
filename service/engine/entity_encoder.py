"""Encodes the features of one owner (user, context or item)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch, Mask, RaggedIds
from ranking.encoding.columns import read_column, to_id_array
from ranking.encoding.encoder import hash_lists, scale_numbers, transform_numbers
from ranking.encoding.feature_table import fill_features
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.frozen.ranker import FrozenRanker
from ranking.lookup.feature_index import IndexLayout
from ranking.schema import InputFeature, NumberFeature, Owner
from service.engine.column_plan import ColumnIndices, ColumnPlan
from service.engine.request import RawFeatures
from service.engine.values import Values, hash_bag, hash_ids, is_set, to_bag, to_embedding_rows, to_float64

EntityHashes: TypeAlias = tuple[IdArray, list[RaggedIds]]
"""``EntityFeatures.hashes`` and ``EntityFeatures.list_hashes``."""

CACHED_PLANS = 256
"""Number of sets of columns whose plans are cached, per owner."""


@dataclass
class EntityFeatures:
    """Encoded features of one owner; mutable.

    Attributes:
        ids: as ``EncodedBatch.ids``.
        bags: as ``EncodedBatch.bags``.
        dense: as ``EncodedBatch.dense``.
        missing: as ``EncodedBatch.missing``.
        hashes: hashes of the ids in ``IndexLayout.parts`` [rows, parts] int64.
        list_hashes: hashes of the ids in ``IndexLayout.list_parts``.
        unseen: whether the ranker has never seen the id of each row [rows]; None if it does not know any id.
        known: whether the table of the owner has the id of each row [rows]; None without a table or ids.
    """

    ids: IdArray
    bags: list[RaggedIds]
    dense: npt.NDArray[np.float32]
    missing: Mask
    hashes: IdArray
    list_hashes: list[RaggedIds]
    unseen: Mask | None = None
    known: Mask | None = None

    @classmethod
    def from_encoded(cls, encoded: EncodedBatch, hashes: IdArray, list_hashes: list[RaggedIds]) -> EntityFeatures:
        """Wrap encoded rows, whose arrays may then be overwritten."""
        return cls(encoded.ids, list(encoded.bags), encoded.dense, encoded.missing, hashes, list_hashes)

    def to_encoded(self) -> EncodedBatch:
        """Return the rows without the hashes."""
        return EncodedBatch(self.ids, tuple(self.bags), self.dense, self.missing)

    def repeat(self, count: int) -> EntityFeatures:
        """Copy a single row ``count`` times."""
        rows = np.zeros(count, np.int64)
        return EntityFeatures(
            self.ids.repeat(count, 0),
            [bag if count == 1 else bag.take(rows) for bag in self.bags],
            self.dense.repeat(count, 0),
            self.missing.repeat(count, 0),
            self.hashes.repeat(count, 0),
            [bag if count == 1 else bag.take(rows) for bag in self.list_hashes],
        )


class EntityEncoder:
    """Encodes the features of one owner.

    Args:
        ranker: ranker that scores the features.
        owner: owner of the features.

    Attributes:
        schema: features of the owner, without crosses.
        parts: names of the features in ``EntityFeatures.hashes``, see ``IndexLayout``.
        list_parts: names of the features in ``EntityFeatures.list_hashes``.
        readable: feature that defines the type of each column; an id feature takes precedence over a number.
        knows_ids: whether ids are in a vocabulary or a table, so that an unseen id can be recognized.
    """

    def __init__(self, ranker: FrozenRanker, owner: Owner) -> None:
        layout = IndexLayout.for_owner(ranker.encoder, owner)
        self.schema = schema = layout.encoder.schema
        self._owner = owner
        self.parts, self.list_parts, self._id_column = layout.parts, layout.list_parts, schema.id_column(owner)
        self._encoder, self._index = layout.encoder, ranker.encoded.get(owner)
        nulls = fill_features(pa.table({"": pa.nulls(1)}), schema, {})
        hashes = layout.encoder.hash_features(nulls, layout.parts)
        lists = [bag for bag in schema.bags if bag.name in layout.list_parts]
        list_hashes = [hash_lists(read_column(nulls[bag.column].combine_chunks(), bag)) for bag in lists]
        self._unknown = EntityFeatures.from_encoded(layout.encoder.encode(nulls), hashes, list_hashes)
        id_features = [feature for feature in schema.inputs if not isinstance(feature, NumberFeature)]
        readers: dict[str, InputFeature] = {}
        for feature in (*id_features, *schema.numbers):
            readers.setdefault(feature.column, feature)
        self._id_is_feature = self._id_column in readers
        columns = dict.fromkeys(feature.column for feature in schema.inputs)
        self.readable = {column: readers[column] for column in columns if column != self._id_column}
        id_feature = ranker.schema.id_feature(owner)
        self._vocabulary_column = None if id_feature is None else schema.categoricals.index(id_feature)
        self.knows_ids = id_feature is not None or self._index is not None
        self._plan = lru_cache(maxsize=CACHED_PLANS)(partial(ColumnPlan.for_columns, layout))

    def encode(self, features: RawFeatures) -> EntityFeatures:
        """Encode features: values by id, overwritten by those of the feature store and of the request.

        Raises:
            InvalidInputError: a number is not finite or outside the domain of its transform, or text is not an
                integer where ids are integers. The error names column and row.
        """
        known = None
        if self._index is not None:
            rows = self._index.rows(features.ids)
            hashes, lists = self._unknown.hashes, self._unknown.list_hashes
            if self.parts or self.list_parts:
                hashes, lists = self._index.part_hashes(rows)
            encoded, known = EntityFeatures.from_encoded(self._index.take(rows), hashes, lists), rows >= 0
        else:
            encoded = self._unknown.repeat(len(features))
        encoded.known = known
        if self._id_is_feature and (known is None or not known.all()):
            ids = to_id_array(features.ids).to_pylist() if isinstance(features.ids, list) else features.ids
            self._overwrite(encoded, {str(self._id_column): ids}, keep=known)
        if features.stored:
            self._overwrite(encoded, features.stored)
        if features.columns:
            self._overwrite(encoded, features.columns)
        if self.knows_ids:
            encoded.unseen = self._unseen(encoded, features, known)
        return encoded

    def part_hashes(self, features: RawFeatures) -> EntityHashes:
        """Return the same hashes as ``encode`` without the encoded features.

        Raises:
            InvalidInputError: text is not an integer where ids are integers.
        """
        known = np.zeros(len(features), np.bool_)
        if self._index is not None:
            rows = self._index.rows(features.ids)
            (hashes, lists), known = self._index.part_hashes(rows), rows >= 0
        else:
            unknown = self._unknown.repeat(len(features))
            hashes, lists = unknown.hashes, unknown.list_hashes
        columns = features.columns
        if self._id_is_feature and not known.all():
            columns = {**columns, str(self._id_column): features.ids}
        plan = self._plan(tuple(columns))
        for column, _, part in plan.ids:
            if part is not None:
                replaced = is_set(columns[column]) & ~(known & (column == self._id_column))
                hashes[replaced, part] = hash_ids(columns[column])[replaced]
        for column, feature, _, _, part in plan.bags:
            if part is not None:
                lists[part] = _replace_lists(lists[part], hash_bag(columns[column], feature), is_set(columns[column]))
        return hashes, lists

    def write_counter_features(
        self,
        encoded: EntityFeatures,
        features: RawFeatures,
        columns: tuple[str, ...],
        numbers: FloatArray,
        lists: Mapping[str, Values],
    ) -> None:
        """Write the features of counters and histories, except for the values that the request sends.

        Args:
            encoded: the encoded rows.
            features: the same features, not encoded.
            columns: columns of the numbers.
            numbers: values [rows, columns] float64; NaN is null.
            lists: lists of ids by column [rows].

        Raises:
            InvalidInputError: as for ``encode``.
        """
        if columns:
            plan = self._plan(columns)
            order = [columns.index(feature.column) for feature in plan.numbers]
            self._write_singles(encoded, plan, [], numbers[:, order], None)
        if lists:
            self._overwrite(encoded, lists)
        sent = {column: values for column, values in features.columns.items() if column in columns or column in lists}
        if sent:
            self._overwrite(encoded, sent)

    def _unseen(self, encoded: EntityFeatures, features: RawFeatures, known: Mask | None) -> Mask:
        """Return which ids are set, but not in the vocabulary of ids; without one, neither in the table nor the store.

        Args:
            encoded: encoded features.
            features: the same features, not encoded.
            known: whether the table has each id [rows]; None without a table.
        """
        unseen: Mask
        if self._vocabulary_column is not None:
            unseen = encoded.ids[:, self._vocabulary_column] == OOV
            sources: tuple[Values, ...] = ()
        else:
            assert known is not None
            unseen, sources = ~known, tuple(features.stored.values())
        if unseen.any():
            for values in sources:
                unseen &= ~is_set(values)
            if self._owner == "user":  # every item has an id
                unseen &= is_set(features.ids)
        return unseen

    def _overwrite(self, encoded: EntityFeatures, columns: Mapping[str, Values], keep: Mask | None = None) -> None:
        """Overwrite encoded features with the values of columns that are set, except in the rows of ``keep``."""
        plan = self._plan(tuple(columns))
        for column, feature, bag, missing, part in plan.bags:
            replaced = is_set(columns[column])
            if replaced.any():
                if part is not None:
                    hashes = hash_bag(columns[column], feature)
                    encoded.list_hashes[part] = _replace_lists(encoded.list_hashes[part], hashes, replaced)
                lists = to_bag(columns[column], feature, self._encoder)
                encoded.bags[bag] = _replace_lists(encoded.bags[bag], lists, replaced)
                encoded.missing[:, missing] &= ~replaced
        singles = [to_embedding_rows(columns[column], id_mapping, column) for column, id_mapping, _ in plan.ids]
        for (column, _, part), rows in zip(plan.ids, singles, strict=True):
            if part is not None:
                id_hashes = hash_ids(columns[column])[:, None]
                _write_columns(encoded.hashes, slice(part, part + 1), id_hashes, rows[:, None] != MISSING, keep)
        numbers = np.empty((0, 0))
        if plan.numbers:
            numbers = to_float64([columns[feature.column] for feature in plan.numbers], plan.numbers)
        self._write_singles(encoded, plan, singles, numbers, keep)

    def _write_singles(
        self, encoded: EntityFeatures, plan: ColumnPlan, singles: list[IdArray], numbers: FloatArray, keep: Mask | None
    ) -> None:
        """Write ids and numbers.

        Args:
            encoded: rows to write to.
            plan: plan of the columns.
            singles: embedding rows of each feature in ``plan.ids`` [rows].
            numbers: number of each feature in ``plan.numbers`` [rows, numbers]; NaN is null.
            keep: rows that are not written.
        """
        if plan.numbers:
            numerics = len(plan.shift)
            buckets = enumerate(plan.bucketizers, numerics)
            singles = [*singles, *(bucketizer.rows_from_values(numbers[:, i]) for i, bucketizer in buckets)]
            if numerics:
                self._write_numbers(encoded, plan, numbers[:, :numerics], keep)
        if singles:
            ids = np.stack(singles, 1)
            written = _write_columns(encoded.ids, plan.single_columns, ids, ids != MISSING, keep)
            encoded.missing[:, plan.single_missing] &= ~written

    def _write_numbers(self, encoded: EntityFeatures, plan: ColumnPlan, numbers: FloatArray, keep: Mask | None) -> None:
        if plan.log_numerics is not None:
            numbers[:, plan.log_numerics] = transform_numbers(numbers[:, plan.log_numerics], "log1p")
        numbers = scale_numbers(numbers, plan.shift, plan.scale, plan.limit)
        written = _write_columns(encoded.dense, plan.numeric_columns, numbers, ~np.isnan(numbers), keep)
        encoded.missing[:, plan.numeric_missing] &= ~written
        if plan.indicated_numerics is not None:
            encoded.dense[:, plan.indicator_columns] *= ~written[:, plan.indicated_numerics]  # 0: not missing


def _write_columns(
    array: npt.NDArray[Any], columns: ColumnIndices, values: npt.NDArray[Any], mask: Mask, keep: Mask | None
) -> Mask:
    """Write values into columns of an array where ``mask`` is set, except in the rows of ``keep``.

    Returns:
        Where values were written [rows, columns].
    """
    if keep is not None:
        mask &= ~keep[:, None]
    array[:, columns] = values if mask.all() else np.where(mask, values, array[:, columns])
    return mask


def _replace_lists(bag: RaggedIds, lists: RaggedIds, mask: Mask) -> RaggedIds:
    """Replace the lists of a bag where ``mask`` is set."""
    if mask.all():
        return lists
    rows = np.arange(len(mask))
    return RaggedIds.concat([bag, lists]).take(np.where(mask, rows + len(mask), rows))
