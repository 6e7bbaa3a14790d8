"""What a request gives → encoded halves. What it leaves out is looked up by id, already encoded.

The same numbers as ``Encoder.encode`` gives for the completed table, only sooner, since nothing passes through Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from ranking.encoded_table import Layout
from ranking.encoding import Bag, Inputs, transform_numbers
from ranking.errors import InvalidInputError
from ranking.features import complete, id_array
from ranking.frozen import FrozenRanker
from ranking.halves import Columns, Halves, Sides
from ranking.id_spaces import Buckets, FloatArray, HashBuckets, IdArray, Vocabulary, hashes_of
from ranking.schema import (
    BucketsFeature,
    CategoricalFeature,
    CrossFeature,
    GivenFeature,
    NumericFeature,
    Owner,
    PooledFeature,
    SequenceFeature,
)

Values = Sequence[Any]
"""Of one column, one a row: JSON's numbers, strings and lists, None where the request gives none."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Given:
    """What a request says of one owner's rows.

    Attributes:
        ids: one a row; None for the context, which has none.
        columns: column → values; types are those of the column's features.
    """

    ids: Sequence[int | str | None] | None
    columns: Mapping[str, Values]


class RequestEncoder:
    """Encodes requests for one ranker.

    Args:
        ranker: that scores them.
    """

    def __init__(self, ranker: FrozenRanker) -> None:
        self.sides = Sides(ranker.encoder)
        owners: list[Owner] = ["user", "context", "item"]
        self._owned = {owner: _Owned(ranker, owner) for owner in owners}
        self._shared = _Half(ranker, self.sides.shared, {o: self._owned[o] for o in owners[:2]})
        self._items = _Half(ranker, self.sides.items, {"item": self._owned["item"]})
        names = [feature.name for feature in ranker.schema.given]
        self._rank = {name: i for i, name in enumerate(names)}
        self._shared_names = np.array([names[i] for i in self.sides.shared.missing])
        self._item_names = np.array([names[i] for i in self.sides.items.missing])

    def __call__(self, given: Mapping[Owner, Given], candidates: int) -> Halves:
        """The halves of one request.

        Args:
            given: of all three owners; one row of the user and of the context.
            candidates: rows of the items.

        Raises:
            InvalidInputError: a number that no log can hold, text that is no integer (names column and row).
        """
        rows = {
            owner: owned.encode(given[owner], candidates if owner == "item" else 1)
            for owner, owned in self._owned.items()
        }
        hashes = {
            name: row.hashes[:, i] for owner, row in rows.items() for i, name in enumerate(self._owned[owner].parts)
        }
        return Halves(
            self._shared.put_together(rows, hashes, 1),
            self._items.put_together(rows, hashes, candidates),
            torch.zeros(candidates, dtype=torch.int64),
        )

    def missing(self, halves: Halves) -> list[list[str]]:
        """Of each candidate, names of the features that are known neither from the request nor by id, as declared."""
        always = self._shared_names[halves.shared.missing[0].numpy()].tolist() if len(halves) else []
        unknown = halves.items.missing.numpy()
        if not unknown.any():
            return [always] * len(halves)
        return [sorted([*always, *self._item_names[row]], key=self._rank.__getitem__) for row in unknown]


@dataclass(frozen=True)
class _Rows:
    """Encoded features of one owner, and hashes of those that crosses are made of [rows, parts]."""

    inputs: Inputs
    hashes: IdArray


class _Owned:
    """Encodes the features of one owner: looked up by id, then what is given in their place."""

    def __init__(self, ranker: FrozenRanker, owner: Owner) -> None:
        layout = Layout.of(ranker.encoder, owner)
        schema = layout.encoder.schema
        self.parts, self._key = layout.parts, schema.id_column(owner)
        self._encoder, self._table = layout.encoder, ranker.encoded.get(owner)
        nulls = complete(pa.table({"": pa.nulls(1)}), schema, {})
        self._unknown = _Rows(layout.encoder.encode(nulls), layout.encoder.hashes(nulls, layout.parts))
        self._features: dict[str, list[GivenFeature]] = {}
        for feature in schema.given:
            self._features.setdefault(feature.column, []).append(feature)
        self._flags = [n.name for n in schema.numerics if layout.encoder.scales[n.name].flagged]
        self._place = {
            f.name: i for kind in (schema.categoricals, schema.bags, schema.numerics) for i, f in enumerate(kind)
        }
        self._missing = {feature.name: i for i, feature in enumerate(schema.given)}

    def encode(self, given: Given, count: int) -> _Rows:
        known = np.zeros(count, np.bool_)
        if self._table is not None and given.ids is not None:
            found = self._table.rows(given.ids)
            rows, known = _Rows(self._table.take(found), self._table.parts(found)), found >= 0
        else:
            zeros = np.zeros(count, np.int64)
            rows = _Rows(self._unknown.inputs.take(torch.from_numpy(zeros)), self._unknown.hashes[zeros])
        bags = list(rows.inputs.bags)
        if given.ids is not None and self._key in self._features and not known.all():
            ids = id_array(given.ids).to_pylist()
            new = ~known & np.array([value is not None for value in ids])
            self._overwrite(str(self._key), ids, new, rows, bags)
        for column, values in given.columns.items():
            self._overwrite(column, values, np.array([value is not None for value in values], np.bool_), rows, bags)
        return _Rows(Inputs(rows.inputs.ids, tuple(bags), rows.inputs.dense, rows.inputs.missing), rows.hashes)

    def _overwrite(self, column: str, values: Values, new: Mask, rows: _Rows, bags: list[Bag]) -> None:
        """Puts what a column gives in the place of what was looked up, in the rows where it is given."""
        if not new.any():
            return
        at: Mask | slice = slice(None) if new.all() else new  # much cheaper where all are given
        ids, dense, missing = (t.numpy() for t in (rows.inputs.ids, rows.inputs.dense, rows.inputs.missing))
        for feature in self._features[column]:
            place = self._place[feature.name]
            missing[at, self._missing[feature.name]] = False
            if isinstance(feature, NumericFeature):
                scale = self._encoder.scales[feature.name]
                numbers, _ = scale.apply(transform_numbers(_numbers(values, feature), feature.transform))
                dense[at, place] = numbers[at]
                if scale.flagged:
                    dense[at, len(self._encoder.scales) + self._flags.index(feature.name)] = 0.0
                continue
            space = self._encoder.id_spaces[feature.table]
            if isinstance(feature, BucketsFeature):
                assert isinstance(space, Buckets)
                ids[at, place] = space.rows_of(_numbers(values, feature))[at]
                continue
            assert isinstance(space, Vocabulary | HashBuckets)
            if isinstance(feature, CategoricalFeature):
                ids[at, place] = space.rows_of(values, column)[at]
                if feature.name in self.parts:
                    rows.hashes[at, self.parts.index(feature.name)] = hashes_of(values)[at]
            else:
                bags[place] = _replaced(bags[place], _bag(values, feature, space), new)


class _Half:
    """Puts the features of a half's owners side by side, in the order of the half, and adds its crosses."""

    def __init__(self, ranker: FrozenRanker, columns: Columns, owned: Mapping[Owner, _Owned]) -> None:
        encoder, schema = ranker.encoder, ranker.schema
        numbers = [*schema.numerics, *(n for n in schema.numerics if encoder.scales[n.name].flagged)]
        first = len(schema.numerics)
        dense = [(numbers[i].name, i < first) for i in columns.dense]
        singles, bags = [f.name for f in columns.singles], [f.name for f in columns.bags]
        missing = [schema.given[i].name for i in columns.missing]
        self._widths = len(singles), len(bags), len(dense), len(missing)
        self._places: dict[Owner, tuple[list[int], list[int], list[int], list[int]]] = {}
        for owner, its in owned.items():
            own = its._encoder.schema
            numerics = [(n.name, True) for n in own.numerics] + [(name, False) for name in its._flags]
            self._places[owner] = (
                [singles.index(f.name) for f in own.categoricals],
                [bags.index(f.name) for f in own.bags],
                [dense.index(number) for number in numerics],
                [missing.index(f.name) for f in own.given],
            )
        self._crosses = [
            (i, f.of, encoder.id_spaces[f.table]) for i, f in enumerate(columns.singles) if isinstance(f, CrossFeature)
        ]
        self._only = next(iter(owned)) if len(owned) == 1 and not self._crosses else None

    def put_together(self, rows: Mapping[Owner, _Rows], hashes: Mapping[str, IdArray], count: int) -> Inputs:
        if self._only is not None:
            return rows[self._only].inputs
        singles, bags, dense, missing = self._widths
        ids, lists = torch.empty(count, singles, dtype=torch.int64), [Bag(torch.empty(0), torch.empty(0))] * bags
        numbers, unknown = torch.empty(count, dense), torch.empty(count, missing, dtype=torch.bool)
        for owner, (of_ids, of_bags, of_dense, of_missing) in self._places.items():
            inputs = rows[owner].inputs
            ids[:, of_ids], numbers[:, of_dense], unknown[:, of_missing] = inputs.ids, inputs.dense, inputs.missing
            for place, bag in zip(of_bags, inputs.bags, strict=True):
                lists[place] = bag
        for place, parts, space in self._crosses:
            assert isinstance(space, HashBuckets)
            ids[:, place] = torch.from_numpy(space.crossed([np.broadcast_to(hashes[part], count) for part in parts]))
        return Inputs(ids, tuple(lists), numbers, unknown)


def _numbers(values: Values, feature: BucketsFeature | NumericFeature) -> FloatArray:
    """Values as float64, NaN where None.

    Raises:
        InvalidInputError: one that is NaN, infinite, or −1 or less before log1p.
    """
    numbers = np.array(values, np.float64)
    if not np.isfinite(numbers).all():
        for row, value in enumerate(values):
            if value is not None and not np.isfinite(value):
                raise InvalidInputError(feature.column, "is NaN or infinite: write null for unknown", row)
    if isinstance(feature, NumericFeature) and feature.transform == "log1p" and (numbers <= -1.0).any():
        row = int(np.argmax(numbers <= -1.0))
        raise InvalidInputError(feature.column, "is −1 or less, but its transform is log1p", row)
    return numbers


def _bag(values: Values, feature: PooledFeature, space: Vocabulary | HashBuckets) -> Bag:
    """Lists of ids as embedding rows; None is one missing id, None inside a list is left out."""
    if isinstance(feature, SequenceFeature):
        values = [ids and ids[-feature.max_length :] for ids in values]
    lists = [[None] if ids is None else [value for value in ids if value is not None] for ids in values]
    return Bag(
        torch.from_numpy(space.rows_of(list(chain.from_iterable(lists)), feature.column)),
        torch.tensor([len(ids) for ids in lists], dtype=torch.int64),
    )


def _replaced(bag: Bag, other: Bag, new: Mask) -> Bag:
    """The lists of ``other`` where ``new``, else those of ``bag``."""
    if new.all():
        return other
    rows = torch.arange(len(new))
    return Bag.concat([bag, other]).take(torch.where(torch.from_numpy(new), rows + len(new), rows))
