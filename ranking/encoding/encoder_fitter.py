"""Fit an encoder on the training split, one batch of rows at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import is_list, read_column, to_canonical
from ranking.encoding.encoder import Encoder, Scale, transform_column, transform_numbers
from ranking.encoding.id_counts import IdCounts
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
"""Maximum sample size for the boundaries of buckets: with ten, 95 % of the buckets hold 10 ± 0.2 % of the rows."""
SAMPLED_FOR_BINS = 10_000
"""Maximum sample size for the edges of bins: with eight, 95 % of the bins hold 12.5 ± 0.7 % of the rows."""
MIN_STEPS_PER_BIN = 16
"""Bins with fewer distinct float32 numbers are merged."""
MIN_BIN_WIDTH = 1e-15
"""Narrower bins are merged, so that numbers up to ``MAX_ABS_VALUE`` divided by a width stay finite."""


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

    Args:
        size: maximum number of numbers.

    Attributes:
        values: the sample.
    """

    def __init__(self, size: int) -> None:
        self.values: FloatArray = np.empty(0)
        self._size = size
        self._random = np.random.default_rng(0)
        self._keys: FloatArray = np.empty(0)
        self._limit = 1.0

    def add(self, column: pa.Array) -> None:
        values = column.drop_null().to_numpy()
        keys = self._random.random(len(values))
        chosen = keys < self._limit
        self._keys = np.concatenate([self._keys, keys[chosen]])
        self.values = np.concatenate([self.values, values[chosen]])
        if len(self._keys) > self._size:
            smallest = np.sort(np.argpartition(self._keys, self._size)[: self._size])
            self._keys, self.values = self._keys[smallest], self.values[smallest]
            self._limit = float(self._keys.max())

    def boundaries(self, count: int) -> FloatArray:
        """Return the lower bounds of ``count`` buckets of equal size, without the first; fewer if numbers are few."""
        if not len(self.values):
            return self.values
        starts = np.quantile(self.values, np.arange(1, count) / count, method="higher")
        return np.unique(starts[starts > self.values.min()])

    def scale(self, feature: NumericFeature, scale: Scale) -> Scale:
        """Return the scale with the edges of the feature's bins, which hold the same number of rows, except for ties.

        There are fewer bins if several edges are equal, and none instead of one, which would be linear.
        """
        if not feature.bins or not len(self.values):
            return scale
        numbers, _ = scale.apply(transform_numbers(self.values, feature.transform))
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, feature.bins + 1)).astype(np.float32))
        widths = np.diff(edges, prepend=-np.inf)
        edges = edges[widths > np.maximum(MIN_STEPS_PER_BIN * np.spacing(np.abs(edges)), MIN_BIN_WIDTH)]
        return replace(scale, edges=tuple(edges.tolist()) if len(edges) > 2 else ())


class EncoderFitter:
    """Counts ids and accumulates statistics of numbers; call ``add`` per training batch, then ``encoder()``.

    Args:
        schema: the features.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._counted = {
            feature.table
            for feature in schema.sparse
            if isinstance(feature, IdFeature) and feature.hash_buckets is None
        }
        self._counts: dict[str, IdCounts] = {}
        self._first_columns: dict[str, str] = {}  # Column of the first ids of each table, which determine their type.
        self._moments = {feature.name: _Moments() for feature in schema.numerics}
        self._samples = {
            feature.name: _Sample(SAMPLED_FOR_BINS if isinstance(feature, NumericFeature) else SAMPLED_NUMBERS)
            for feature in schema.numbers
            if isinstance(feature, NumericFeature) or feature.count is not None
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
            if feature.name in self._samples:
                self._samples[feature.name].add(column)
            elif isinstance(feature, IdFeature) and feature.table in self._counted:
                self._count(feature.table, pc.list_flatten(column) if is_list(column.type) else column, feature.column)

    def _count(self, name: str, ids: pa.Array, field: str) -> None:
        if pa.types.is_null(ids.type):
            return
        counts = self._counts.setdefault(name, IdCounts(ids.type))
        first_field = self._first_columns.setdefault(name, field)
        if ids.type != counts.dtype:
            other = (
                "rows read before" if first_field == field else f"column '{first_field}', which shares table '{name}'"
            )
            reason = f"holds {_type_name(ids.type)}, but {_type_name(counts.dtype)} in {other}: write ids of one type"
            raise InvalidInputError(field, reason)
        counts.add(ids)

    def encoder(self) -> Encoder:
        """Return the fitted encoder; vocabularies are in descending order of count, then in order of value."""
        id_mappings = {name: self._id_mapping(name, feature) for name, feature in self._schema.tables.items()}
        scales = {f.name: self._samples[f.name].scale(f, self._moments[f.name].scale(f)) for f in self._schema.numerics}
        return Encoder(self._schema, id_mappings, scales)

    def rare_shares(self) -> dict[str, float]:
        """Return the share of the training ids of each vocabulary that occur less often than ``min_count``."""
        return {
            name: self._counts[name].rare_share(feature.min_count) if name in self._counts else 0.0
            for name, feature in self._schema.tables.items()
            if isinstance(feature, IdFeature) and name in self._counted
        }

    def _id_mapping(self, name: str, feature: SparseFeature) -> IdMapping:
        if isinstance(feature, BucketsFeature):
            if feature.count is None:
                return Bucketizer(np.array(feature.boundaries))
            return Bucketizer(self._samples[name].boundaries(feature.count))
        if feature.hash_buckets is not None:
            return HashBuckets(feature.hash_buckets)
        counts = self._counts.get(name)
        return Vocabulary(pa.array([], pa.string()) if counts is None else counts.frequent(feature.min_count))


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
    return column.type.value_type if is_list(column.type) else column.type


def _type_name(dtype: pa.DataType) -> str:
    return "text" if pa.types.is_string(dtype) else "integers"
