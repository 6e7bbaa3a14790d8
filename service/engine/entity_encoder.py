"""The features of one owner: looked up by id, then what a store and a request give in their place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import Mask, RaggedIds
from ranking.encoding.columns import to_id_array
from ranking.encoding.feature_table import fill_features
from ranking.encoding.encoder import scale_numbers, transform_numbers
from ranking.encoding.vocabulary import MISSING, FloatArray
from ranking.frozen.ranker import FrozenRanker
from ranking.lookup.feature_index import IndexLayout
from ranking.schema import InputFeature, NumberFeature, Owner
from service.engine import values as of
from service.engine.column_plan import ColumnPlan, Places
from service.engine.entity_features import EntityFeatures
from service.engine.request import RawFeatures
from service.engine.values import Values

PLANS = 256
"""Sets of columns whose places are remembered."""


class EntityEncoder:
    """Encodes the features of one owner.

    Args:
        ranker: that scores them.
        owner: whose features.

    Attributes:
        schema: the owner's features, crosses left out.
        parts: names of those that crosses are made of: columns of ``EntityFeatures.hashes``.
        readable: column → the feature that says what its values are: of an id, if one reads the column.
    """

    def __init__(self, ranker: FrozenRanker, owner: Owner) -> None:
        layout = IndexLayout.for_owner(ranker.encoder, owner)
        self.schema = schema = layout.encoder.schema
        self.parts, self._key = layout.cross_parts, schema.id_column(owner)
        self._encoder, self._table = layout.encoder, ranker.encoded.get(owner)
        nulls = fill_features(pa.table({"": pa.nulls(1)}), schema, {})
        self._unknown = EntityFeatures.from_encoded(
            layout.encoder.encode(nulls), layout.encoder.hash_features(nulls, layout.cross_parts)
        )
        ids = [feature for feature in schema.inputs if not isinstance(feature, NumberFeature)]
        readers: dict[str, InputFeature] = {}
        for feature in (*ids, *schema.numbers):
            readers.setdefault(feature.column, feature)
        self._key_is_read = self._key in readers
        columns = dict.fromkeys(feature.column for feature in schema.inputs)
        self.readable = {column: readers[column] for column in columns if column != self._key}
        self._plan = lru_cache(maxsize=PLANS)(partial(ColumnPlan.for_columns, layout))

    def encode(self, given: RawFeatures, count: int) -> EntityFeatures:
        """So many rows.

        Raises:
            InvalidInputError: a number that no log can hold, text that is no integer (names column and row).
        """
        known = None
        if self._table is not None and given.ids is not None:
            found = self._table.rows(given.ids)
            hashes = self._table.cross_hashes(found) if self.parts else self._unknown.hashes
            rows, known = EntityFeatures.from_encoded(self._table.take(found), hashes), found >= 0
        else:
            rows = self._unknown.repeated(count)
        if self._key_is_read and given.ids is not None and (known is None or not known.all()):
            ids = to_id_array(given.ids).to_pylist() if isinstance(given.ids, list) else given.ids
            self._put({str(self._key): ids}, rows, known)
        if given.stored:
            self._put(given.stored, rows)
        if given.columns:
            self._put(given.columns, rows)
        return rows

    def _put(self, columns: Mapping[str, Values], rows: EntityFeatures, keep: Mask | None = None) -> None:
        """Puts what columns give in the place of what was looked up, but for the rows to be kept."""
        plan = self._plan(tuple(columns))
        for column, feature, place, missing in plan.lists:
            new = of.is_set(columns[column])
            if new.any():
                lists = of.bag(columns[column], feature, self._encoder)
                rows.bags[place] = _replaced(rows.bags[place], lists, new)
                rows.missing[:, missing] &= ~new
        ids = [of.rows(columns[column], space, column) for column, space, _ in plan.ids]
        for (column, _, part), found in zip(plan.ids, ids, strict=True):
            if part is not None:
                hashes, at = of.hashes(columns[column])[:, None], slice(part, part + 1)
                _write(rows.hashes, at, hashes, found[:, None] != MISSING, keep)
        if plan.numbers:
            numbers = of.numbers([columns[feature.column] for feature in plan.numbers], plan.numbers)
            first = len(plan.shift)
            ids += [space.rows_from_values(numbers[:, first + i]) for i, space in enumerate(plan.buckets)]
            if first:
                self._put_numbers(plan, numbers[:, :first], rows, keep)
        if ids:
            found = np.stack(ids, 1)
            new = _write(rows.ids, plan.single_places, found, found != MISSING, keep)
            rows.missing[:, plan.single_missing] &= ~new

    def _put_numbers(self, plan: ColumnPlan, numbers: FloatArray, rows: EntityFeatures, keep: Mask | None) -> None:
        if plan.logs is not None:
            numbers[:, plan.logs] = transform_numbers(numbers[:, plan.logs], "log1p")
        numbers = scale_numbers(numbers, plan.shift, plan.scale)
        new = _write(rows.dense, plan.numeric_places, numbers, ~np.isnan(numbers), keep)
        rows.missing[:, plan.numeric_missing] &= ~new
        if plan.flagged is not None:
            rows.dense[:, plan.flags] *= ~new[:, plan.flagged]  # 0 where it is known now


def _write(array: npt.NDArray[Any], places: Places, values: npt.NDArray[Any], new: Mask, keep: Mask | None) -> Mask:
    """Values into columns of an array, where they are new and not to be kept; where that was [rows, columns]."""
    if keep is not None:
        new &= ~keep[:, None]
    array[:, places] = values if new.all() else np.where(new, values, array[:, places])
    return new


def _replaced(bag: RaggedIds, other: RaggedIds, new: Mask) -> RaggedIds:
    """The lists of ``other`` where ``new``, else those of ``bag``."""
    if new.all():
        return other
    rows = np.arange(len(new))
    return RaggedIds.concat([bag, other]).take(np.where(new, rows + len(new), rows))
