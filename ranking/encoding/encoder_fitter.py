"""Fit an encoder on the training split, one batch of rows at a time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import read_column, to_canonical
from ranking.encoding.encoder import Encoder, Scale, transform_column
from ranking.encoding.vocabulary import Bucketizer, FloatArray, HashBuckets, IdMapping, Vocabulary
from ranking.errors import InvalidInputError
from ranking.schema import BucketsFeature, IdFeature, NumericFeature, PooledFeature, Schema, SparseFeature
from ranking.schema.value_text import value_text

MIN_INDICATED = 0.01
"""Least share of nulls among the training rows with which a feature has a missing indicator.

After batch norm, a rarer indicator is many standard deviations large in the few rows that have it. Its weight, which
these rows alone determine, would then decide their scores.
"""
SAMPLED_NUMBERS = 100_000
"""Maximum sample size for quantiles: with ten buckets, 95 % of the buckets hold 10 ± 0.2 % of the rows."""


def has_indicator(nulls: int, rows: int) -> bool:
    """Return whether a feature with this number of nulls among the training rows has a missing indicator."""
    return nulls > 0 and nulls >= MIN_INDICATED * rows


@dataclass
class _Moments:
    """Running count, mean and sum of squared deviations (pairwise update of Chan et al. 1979)."""

    count: int = 0
    nulls: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, column: pa.Array, transform: str) -> None:
        values = transform_column(column.drop_null(), transform)
        self.nulls += column.null_count
        if not len(values):
            return
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        count, mean = len(values), float(values.mean())
        total, delta = self.count + count, mean - self.mean
        self.squares += float(np.square(values - mean).sum()) + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total

    def scale(self, feature: NumericFeature) -> Scale:
        is_indicated = has_indicator(self.nulls, self.nulls + self.count)
        if feature.transform == "none":
            return Scale(shift=0.0, scale=1.0, fill=self.mean, has_missing_indicator=is_indicated)
        std = math.sqrt(self.squares / self.count) if self.low < self.high else 0.0
        clip = None if feature.clip == "none" else feature.clip
        return Scale(shift=self.mean, scale=std or 1.0, fill=0.0, has_missing_indicator=is_indicated, clip=clip)


class _Sample:
    """Uniform sample of bounded size: the numbers with the smallest random keys (bottom-k sampling).

    The sample depends on the order of the numbers, not on the division into batches.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._keys: FloatArray = np.empty(0)
        self._values: FloatArray = np.empty(0)

    def add(self, column: pa.Array) -> None:
        values = column.drop_null().to_numpy()
        self._keys = np.concatenate([self._keys, self._random.random(len(values))])
        self._values = np.concatenate([self._values, values])
        if len(self._keys) > SAMPLED_NUMBERS:
            smallest = np.sort(np.argpartition(self._keys, SAMPLED_NUMBERS)[:SAMPLED_NUMBERS])
            self._keys, self._values = self._keys[smallest], self._values[smallest]

    def boundaries(self, count: int) -> FloatArray:
        """Return the lower bounds of ``count`` buckets of equal size, without the first; fewer if numbers are few."""
        if not len(self._values):
            return self._values
        starts = np.quantile(self._values, np.arange(1, count) / count, method="higher")
        return np.unique(starts[starts > self._values.min()])


class EncoderFitter:
    """Counts ids and accumulates statistics of numbers; call ``add`` per training batch, then ``encoder()``.

    Args:
        schema: the features.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._counts: dict[str, Counter[Any]] = {
            feature.table: Counter()
            for feature in schema.sparse
            if isinstance(feature, IdFeature) and feature.hash_buckets is None
        }
        self._types: dict[
            str, tuple[pa.DataType, str]
        ] = {}  # The type of each table's ids and the first column with it.
        self._moments = {feature.name: _Moments() for feature in schema.numerics}
        self._samples = {
            feature.name: _Sample()
            for feature in schema.features
            if isinstance(feature, BucketsFeature) and feature.count is not None
        }

    def add(self, table: pa.Table) -> None:
        """Add a table completed by ``fill_features``.

        Raises:
            InvalidInputError: ids of one embedding table mix text and integers, or a default has the other type.
        """
        for feature in self._schema.inputs:
            canonical = table[feature.column].combine_chunks()
            if isinstance(feature, IdFeature):
                _check_default_type(canonical, feature)
            column = read_column(canonical, feature)
            if isinstance(feature, NumericFeature):
                self._moments[feature.name].add(column, feature.transform)
            elif feature.name in self._samples:
                self._samples[feature.name].add(column)
            elif feature.table in self._counts:
                self._count(feature.table, pc.list_flatten(column) if _is_list(column) else column, feature.column)

    def _count(self, name: str, ids: pa.Array, field: str) -> None:
        if pa.types.is_null(ids.type):
            return
        dtype, first_field = self._types.setdefault(name, (ids.type, field))
        if ids.type != dtype:
            other = (
                "rows read before" if first_field == field else f"column '{first_field}', which shares table '{name}'"
            )
            reason = f"holds {_type_name(ids.type)}, but {_type_name(dtype)} in {other}: write ids of one type"
            raise InvalidInputError(field, reason)
        counts = pc.value_counts(ids.drop_null())
        self._counts[name].update(dict(zip(*(counts.field(i).to_pylist() for i in (0, 1)), strict=True)))

    def encoder(self) -> Encoder:
        """Return the fitted encoder; vocabularies are in descending order of count, then in order of value."""
        id_mappings = {name: self._id_mapping(name, feature) for name, feature in self._schema.tables.items()}
        scales = {f.name: self._moments[f.name].scale(f) for f in self._schema.numerics}
        return Encoder(self._schema, id_mappings, scales)

    def _id_mapping(self, name: str, feature: SparseFeature) -> IdMapping:
        if isinstance(feature, BucketsFeature):
            if feature.count is None:
                return Bucketizer(np.array(feature.boundaries))
            return Bucketizer(self._samples[name].boundaries(feature.count))
        if feature.hash_buckets is not None:
            return HashBuckets(feature.hash_buckets)
        counts = self._counts[name]
        kept = sorted((v for v, n in counts.items() if n >= feature.min_count), key=lambda v: (-counts[v], v))
        dtype, _ = self._types.get(name, (pa.string(), ""))
        return Vocabulary(pa.array(kept, dtype))


def _check_default_type(column: pa.Array, feature: IdFeature) -> None:
    """Check that the default and the column are both text or both integers.

    Raises:
        InvalidInputError: they are not.
    """
    if feature.default is None:
        return
    default = list(feature.default) if isinstance(feature, PooledFeature) else feature.default
    expected, actual = _id_type(column), _id_type(to_canonical(pa.array([default]), feature))
    if expected != actual and not (pa.types.is_null(expected) or pa.types.is_null(actual)):
        hint = "write it in quotes" if pa.types.is_string(expected) else "write an integer"
        reason = f"holds {_type_name(expected)}, but the default of '{feature.name}' is {value_text(default)}: {hint}"
        raise InvalidInputError(feature.column, reason)


def _id_type(column: pa.Array) -> pa.DataType:
    return column.type.value_type if _is_list(column) else column.type


def _type_name(dtype: pa.DataType) -> str:
    return "text" if pa.types.is_string(dtype) else "integers"


def _is_list(column: pa.Array) -> bool:
    return bool(pa.types.is_large_list(column.type))
