"""Where the values of the columns that a request gives have their places; worked out once for a set of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ranking.encoding.vocabulary import Bucketizer, FloatArray, HashBuckets, IdMapping, Vocabulary
from ranking.lookup.feature_index import IndexLayout
from ranking.schema import BucketsFeature, CategoricalFeature, NumberFeature, NumericFeature, PooledFeature

Places: TypeAlias = slice | npt.NDArray[np.intp]
"""Columns of an array: a slice where they stand together, which is much cheaper."""


@dataclass(frozen=True)
class ColumnPlan:
    """Of the columns of one owner that a request gives.

    Attributes:
        lists: column, feature, its place among the bags and among the missing ones.
        ids: column, id space, and place among the parts of crosses or None.
        numbers: features that read numbers, numeric ones first.
        buckets: id spaces of those that are cut.
        single_places: of ``ids`` and ``buckets`` among features with one embedding.
        single_missing: the same among the missing ones.
        numeric_places: among the dense columns.
        numeric_missing: the same among the missing ones.
        logs: which numbers are transformed.
        shift: of each numeric feature; and its ``scale``.
        flagged: which numeric features have a dense column that says "missing".
        flags: those columns.
    """

    lists: list[tuple[str, PooledFeature, int, int]]
    ids: list[tuple[str, Vocabulary | HashBuckets, int | None]]
    numbers: list[NumberFeature]
    buckets: list[Bucketizer]
    single_places: Places
    single_missing: Places
    numeric_places: Places
    numeric_missing: Places
    logs: Places | None
    shift: FloatArray
    scale: FloatArray
    flagged: Places | None
    flags: Places

    @classmethod
    def for_columns(cls, layout: IndexLayout, columns: tuple[str, ...]) -> ColumnPlan:
        """The plan for these columns, all of which features read."""
        schema, spaces, scales = layout.encoder.schema, layout.encoder.id_mappings, layout.encoder.scales
        given = [feature for feature in schema.inputs if feature.column in columns]
        kinds = (schema.categoricals, schema.bags, schema.numerics)
        place = {feature.name: i for kind in kinds for i, feature in enumerate(kind)}
        missing = {feature.name: i for i, feature in enumerate(schema.inputs)}
        flag = [number.name for number in schema.numerics if scales[number.name].has_missing_indicator]
        categoricals = [feature for feature in given if isinstance(feature, CategoricalFeature)]
        buckets = [feature for feature in given if isinstance(feature, BucketsFeature)]
        numerics = [feature for feature in given if isinstance(feature, NumericFeature)]
        singles = [*categoricals, *buckets]
        logs = [i for i, feature in enumerate(numerics) if feature.transform == "log1p"]
        flagged = [i for i, feature in enumerate(numerics) if feature.name in flag]
        return cls(
            lists=[(f.column, f, place[f.name], missing[f.name]) for f in given if isinstance(f, PooledFeature)],
            ids=[
                (
                    f.column,
                    _ids(spaces[f.table]),
                    layout.cross_parts.index(f.name) if f.name in layout.cross_parts else None,
                )
                for f in categoricals
            ],
            numbers=[*numerics, *buckets],
            buckets=[_cut(spaces[f.table]) for f in buckets],
            single_places=_places([place[f.name] for f in singles]),
            single_missing=_places([missing[f.name] for f in singles]),
            numeric_places=_places([place[f.name] for f in numerics]),
            numeric_missing=_places([missing[f.name] for f in numerics]),
            logs=_places(logs) if logs else None,
            shift=np.array([scales[f.name].shift for f in numerics]),
            scale=np.array([scales[f.name].scale for f in numerics]),
            flagged=_places(flagged) if flagged else None,
            flags=_places([len(scales) + flag.index(numerics[i].name) for i in flagged]),
        )


def _places(places: list[int]) -> Places:
    if places and places == list(range(places[0], places[-1] + 1)):
        return slice(places[0], places[-1] + 1)
    return np.array(places, np.intp)


def _ids(space: IdMapping) -> Vocabulary | HashBuckets:
    assert isinstance(space, Vocabulary | HashBuckets)
    return space


def _cut(space: IdMapping) -> Bucketizer:
    assert isinstance(space, Bucketizer)
    return space
