"""The features of one owner: looked up by id, then what a request gives in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from ranking.encoded_table import Layout
from ranking.encoding import Bag, scaled, transform_numbers
from ranking.features import complete, id_array
from ranking.frozen import FrozenRanker
from ranking.id_spaces import MISSING, Buckets, FloatArray, HashBuckets, IdArray, Vocabulary
from ranking.schema import (
    BucketsFeature,
    GivenFeature,
    NumberFeature,
    NumericFeature,
    Owner,
    PooledFeature,
    SingleFeature,
)
from service.engine import values as of
from service.engine.rows import Rows
from service.engine.values import Mask, Values


@dataclass(frozen=True)
class Given:
    """What a request says of one owner's rows.

    Attributes:
        ids: one a row; None for the context, which has none.
        columns: column → values; types are those of the column's features.
    """

    ids: Sequence[int | str | None] | pa.Array | None
    columns: Mapping[str, Values]


class Owned:
    """Encodes the features of one owner.

    Args:
        ranker: that scores them.
        owner: whose features.

    Attributes:
        schema: the owner's features, crosses left out.
        parts: names of those that crosses are made of: columns of ``Rows.hashes``.
        readable: column → the feature that says what its values are: of an id, if one reads the column.
    """

    def __init__(self, ranker: FrozenRanker, owner: Owner) -> None:
        layout = Layout.of(ranker.encoder, owner)
        self.schema = schema = layout.encoder.schema
        self.parts, self._key = layout.parts, schema.id_column(owner)
        self._encoder, self._table = layout.encoder, ranker.encoded.get(owner)
        nulls = complete(pa.table({"": pa.nulls(1)}), schema, {})
        self._unknown = Rows.of(layout.encoder.encode(nulls), layout.encoder.hashes(nulls, layout.parts))
        self._features: dict[str, list[GivenFeature]] = {}
        for feature in schema.given:
            self._features.setdefault(feature.column, []).append(feature)
        self.readable: dict[str, GivenFeature] = {
            column: next((f for f in features if not isinstance(f, NumberFeature)), features[0])
            for column, features in self._features.items()
            if column != self._key
        }
        scales = layout.encoder.scales
        flagged = [number.name for number in schema.numerics if scales[number.name].flagged]
        self._flag = {name: len(scales) + i for i, name in enumerate(flagged)}
        self._place = {
            f.name: i for kind in (schema.categoricals, schema.bags, schema.numerics) for i, f in enumerate(kind)
        }
        self._missing = {feature.name: i for i, feature in enumerate(schema.given)}

    def encode(self, given: Given, count: int) -> Rows:
        """So many rows.

        Raises:
            InvalidInputError: a number that no log can hold, text that is no integer (names column and row).
        """
        known = None
        if self._table is not None and given.ids is not None:
            found = self._table.rows(given.ids)
            rows, known = Rows.of(self._table.take(found), self._table.parts(found)), found >= 0
        else:
            rows = self._unknown.repeated(count)
        if given.ids is not None and self._key in self._features and (known is None or not known.all()):
            ids = given.ids if isinstance(given.ids, pa.Array) else id_array(given.ids).to_pylist()
            self._put({self._key: ids}, rows, known)
        if given.columns:
            self._put(given.columns, rows)
        return rows

    def _put(self, columns: Mapping[str, Values], rows: Rows, keep: Mask | None = None) -> None:
        """Puts what columns give in the place of what was looked up, but for the rows to be kept."""
        numbers: list[tuple[NumberFeature, Values]] = []
        singles: list[SingleFeature] = []
        ids: list[IdArray] = []
        for column, values in columns.items():
            for feature in self._features[column]:
                if isinstance(feature, NumberFeature):
                    numbers.append((feature, values))
                    continue
                if isinstance(feature, PooledFeature):
                    self._put_lists(feature, values, rows)
                    continue
                space = self._encoder.id_spaces[feature.table]
                assert isinstance(space, Vocabulary | HashBuckets)
                singles.append(feature)
                ids.append(of.rows(values, space, column))
                if feature.name in self.parts:
                    part, new = self.parts.index(feature.name), _but(ids[-1] != MISSING, keep)
                    rows.hashes[:, part] = np.where(new, of.hashes(values), rows.hashes[:, part])
        if numbers:
            features = [feature for feature, _ in numbers]
            found = of.numbers([values for _, values in numbers], features)
            for i, feature in enumerate(features):
                if isinstance(feature, BucketsFeature):
                    buckets = self._encoder.id_spaces[feature.table]
                    assert isinstance(buckets, Buckets)
                    singles.append(feature)
                    ids.append(buckets.rows_of(found[:, i]))
            numerics = [(i, feature) for i, feature in enumerate(features) if isinstance(feature, NumericFeature)]
            if numerics:
                self._put_numbers([f for _, f in numerics], found[:, [i for i, _ in numerics]], rows, keep)
        if singles:
            self._put_ids(singles, np.stack(ids, 1), rows, keep)

    def _put_lists(self, feature: PooledFeature, values: Values, rows: Rows) -> None:
        new = of.known(values)
        if new.any():
            place = self._place[feature.name]
            rows.bags[place] = _replaced(rows.bags[place], of.bag(values, feature, self._encoder), new)
            rows.missing[:, self._missing[feature.name]] &= ~new

    def _put_ids(self, features: Sequence[SingleFeature], found: IdArray, rows: Rows, keep: Mask | None) -> None:
        new = _but(found != MISSING, keep)
        places = [self._place[feature.name] for feature in features]
        rows.ids[:, places] = np.where(new, found, rows.ids[:, places])
        rows.missing[:, [self._missing[feature.name] for feature in features]] &= ~new

    def _put_numbers(
        self, features: Sequence[NumericFeature], numbers: FloatArray, rows: Rows, keep: Mask | None
    ) -> None:
        new = _but(~np.isnan(numbers), keep)
        if logs := [i for i, feature in enumerate(features) if feature.transform == "log1p"]:
            numbers[:, logs] = transform_numbers(numbers[:, logs], "log1p")
        scales = [self._encoder.scales[feature.name] for feature in features]
        numbers = scaled(numbers, np.array([s.shift for s in scales]), np.array([s.scale for s in scales]))
        places = [self._place[feature.name] for feature in features]
        rows.dense[:, places] = np.where(new, numbers, rows.dense[:, places])
        rows.missing[:, [self._missing[feature.name] for feature in features]] &= ~new
        if flagged := [i for i, feature in enumerate(features) if feature.name in self._flag]:
            flags = [self._flag[features[i].name] for i in flagged]
            rows.dense[:, flags] = np.where(new[:, flagged], 0.0, rows.dense[:, flags])


def _but(new: Mask, keep: Mask | None) -> Mask:
    """``new`` [rows] or [rows, features] without the rows to be kept."""
    return new if keep is None else new & ~keep.reshape(-1, *[1] * (new.ndim - 1))


def _replaced(bag: Bag, other: Bag, new: Mask) -> Bag:
    """The lists of ``other`` where ``new``, else those of ``bag``."""
    if new.all():
        return other
    rows = torch.arange(len(new))
    return Bag.concat([bag, other]).take(torch.where(torch.from_numpy(new), rows + len(new), rows))
