"""Destinations of the columns of a request in the encoded arrays, computed once per set of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ranking.encoding.vocabulary import Bucketizer, FloatArray, HashBuckets, IdMapping, Vocabulary
from ranking.lookup.feature_index import IndexLayout
from ranking.schema import BucketsFeature, CategoricalFeature, NumberFeature, NumericFeature, PooledFeature

ColumnIndices: TypeAlias = slice | npt.NDArray[np.intp]
"""Columns of an array; a slice where they are contiguous, because indexing with a slice is much cheaper."""


@dataclass(frozen=True)
class ColumnPlan:
    """Encoding of the values of a set of columns of one owner.

    Attributes:
        bags: column, feature, index among the bags, index among all features and index in ``IndexLayout.list_parts``
            (None if its hashes are not needed), per feature with lists of ids.
        ids: column, id mapping and index in ``IndexLayout.parts`` (None if its hashes are not needed), per id feature.
        numbers: features that read numbers; numeric features first, then bucketized ones.
        bucketizers: bucketizers of the bucketized features.
        single_columns: columns of ``EntityFeatures.ids`` of the features in ``ids``, then of the bucketized ones.
        single_missing: columns of ``EntityFeatures.missing`` of the same features.
        numeric_columns: columns of ``EntityFeatures.dense`` of the numeric features.
        numeric_missing: columns of ``EntityFeatures.missing`` of the numeric features.
        log_numerics: indices of the numeric features with the transform log1p; None if there are none.
        shift: shift of each numeric feature.
        scale: scale of each numeric feature.
        limit: maximum absolute scaled number of each numeric feature.
        indicated_numerics: indices of the numeric features with a missing indicator; None if there are none.
        indicator_columns: columns of ``EntityFeatures.dense`` of these missing indicators.
    """

    bags: list[tuple[str, PooledFeature, int, int, int | None]]
    ids: list[tuple[str, Vocabulary | HashBuckets, int | None]]
    numbers: list[NumberFeature]
    bucketizers: list[Bucketizer]
    single_columns: ColumnIndices
    single_missing: ColumnIndices
    numeric_columns: ColumnIndices
    numeric_missing: ColumnIndices
    log_numerics: ColumnIndices | None
    shift: FloatArray
    scale: FloatArray
    limit: FloatArray
    indicated_numerics: ColumnIndices | None
    indicator_columns: ColumnIndices

    @classmethod
    def for_columns(cls, layout: IndexLayout, columns: tuple[str, ...]) -> ColumnPlan:
        """Build the plan for columns that features of the layout read."""
        schema, id_mappings, scales = layout.encoder.schema, layout.encoder.id_mappings, layout.encoder.scales
        features = [feature for feature in schema.inputs if feature.column in columns]
        groups = (schema.categoricals, schema.bags, schema.numerics)
        group_index = {feature.name: i for group in groups for i, feature in enumerate(group)}
        input_index = {feature.name: i for i, feature in enumerate(schema.inputs)}
        indicated = [number.name for number in schema.numerics if scales[number.name].has_missing_indicator]
        categoricals = [feature for feature in features if isinstance(feature, CategoricalFeature)]
        bucketized = [feature for feature in features if isinstance(feature, BucketsFeature)]
        numerics = [feature for feature in features if isinstance(feature, NumericFeature)]
        singles = [*categoricals, *bucketized]
        log_numerics = [i for i, feature in enumerate(numerics) if feature.transform == "log1p"]
        indicated_numerics = [i for i, feature in enumerate(numerics) if feature.name in indicated]
        part_index = {name: i for i, name in enumerate(layout.parts)}
        list_index = {name: i for i, name in enumerate(layout.list_parts)}
        return cls(
            bags=[
                (f.column, f, group_index[f.name], input_index[f.name], list_index.get(f.name))
                for f in features
                if isinstance(f, PooledFeature)
            ],
            ids=[(f.column, _id_mapping(id_mappings[f.table]), part_index.get(f.name)) for f in categoricals],
            numbers=[*numerics, *bucketized],
            bucketizers=[_bucketizer(id_mappings[f.table]) for f in bucketized],
            single_columns=_indices([group_index[f.name] for f in singles]),
            single_missing=_indices([input_index[f.name] for f in singles]),
            numeric_columns=_indices([group_index[f.name] for f in numerics]),
            numeric_missing=_indices([input_index[f.name] for f in numerics]),
            log_numerics=_indices(log_numerics) if log_numerics else None,
            shift=np.array([scales[f.name].shift for f in numerics]),
            scale=np.array([scales[f.name].scale for f in numerics]),
            limit=np.array([scales[f.name].limit for f in numerics]),
            indicated_numerics=_indices(indicated_numerics) if indicated_numerics else None,
            indicator_columns=_indices([len(scales) + indicated.index(numerics[i].name) for i in indicated_numerics]),
        )


def _indices(columns: list[int]) -> ColumnIndices:
    if columns and columns == list(range(columns[0], columns[-1] + 1)):
        return slice(columns[0], columns[-1] + 1)
    return np.array(columns, np.intp)


def _id_mapping(mapping: IdMapping) -> Vocabulary | HashBuckets:
    assert isinstance(mapping, Vocabulary | HashBuckets)
    return mapping


def _bucketizer(mapping: IdMapping) -> Bucketizer:
    assert isinstance(mapping, Bucketizer)
    return mapping
