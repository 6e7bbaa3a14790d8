"""Fit an encoder on the training split, one batch of rows at a time, also in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import is_list, read_column, to_canonical
from ranking.encoding.encoder import Encoder, Scale, transform_column, transform_numbers
from ranking.encoding.id_counts import IdCounts
from ranking.encoding.row_sample import Positions, number_sample, row_keys
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
        if not len(values):
            self.nulls += column.null_count
            return
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        low, high = float(values.min()), float(values.max())
        self.merge(_Moments(len(values), column.null_count, mean, squares, low, high))

    def merge(self, other: _Moments) -> None:
        self.nulls += other.nulls
        if not other.count:
            return
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        total, delta = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + delta**2 * self.count * other.count / total
        self.mean += delta * other.count / total
        self.count = total

    def scale(self, feature: NumericFeature) -> Scale:
        is_indicated = has_indicator(self.nulls, self.nulls + self.count)
        if feature.transform == "none":
            return Scale(shift=0.0, scale=1.0, fill=self.mean, has_missing_indicator=is_indicated)
        std = math.sqrt(self.squares / self.count) if self.low < self.high else 0.0
        clip = None if feature.clip == "none" else feature.clip
        return Scale(shift=self.mean, scale=std or 1.0, fill=0.0, has_missing_indicator=is_indicated, clip=clip)


def _boundaries(sample: FloatArray, count: int) -> FloatArray:
    """Return the lower bounds of ``count`` buckets of equal size, without the first; fewer if numbers are few."""
    if not len(sample):
        return sample
    starts = np.quantile(sample, np.arange(1, count) / count, method="higher")
    return np.unique(starts[starts > sample.min()])


def _with_bins(scale: Scale, sample: FloatArray, feature: NumericFeature) -> Scale:
    """Return the scale with the edges of the feature's bins, which hold the same number of rows, except for ties.

    There are fewer bins if several edges are equal, and none instead of one, which would be linear.
    """
    if not feature.bins or not len(sample):
        return scale
    numbers, _ = scale.apply(transform_numbers(sample, feature.transform))
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, feature.bins + 1)).astype(np.float32))
    widths = np.diff(edges, prepend=-np.inf)
    edges = edges[widths > np.maximum(MIN_STEPS_PER_BIN * np.spacing(np.abs(edges)), MIN_BIN_WIDTH)]
    return replace(scale, edges=tuple(edges.tolist()) if len(edges) > 2 else ())


class EncoderFitter:
    """Counts ids and accumulates statistics of numbers; call ``add`` per training batch, then ``encoder()``.

    A log can also be read in parts, by several processes: each adds its rows to an empty ``part()``, and ``merge``
    adds the parts to the fitter in the order of the log. The encoder depends on what the parts are, but not on who
    reads them.

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
            feature.name: number_sample(SAMPLED_FOR_BINS if isinstance(feature, NumericFeature) else SAMPLED_NUMBERS)
            for feature in schema.numbers
            if isinstance(feature, NumericFeature) or feature.count is not None
        }
        self._rows = 0

    def add(self, table: pa.Table, positions: Positions | None = None) -> None:
        """Add a table completed by ``fill_features``.

        Args:
            table: the rows.
            positions: position of each row in the log [rows]; each row has another one. Default: the rows are counted.

        Raises:
            InvalidInputError: ids of one embedding table mix text and integers, or a default has the other type.
        """
        if positions is None:
            positions = np.arange(self._rows, self._rows + table.num_rows)
        self._rows += table.num_rows
        for feature in self._schema.inputs:
            canonical = table[feature.column].combine_chunks()
            if isinstance(feature, IdFeature):
                _check_default_type(canonical, feature)
            column = read_column(canonical, feature)
            if isinstance(feature, NumericFeature):
                self._moments[feature.name].add(column, feature.transform)
            if feature.name in self._samples:
                known = positions[column.is_valid().to_numpy(zero_copy_only=False)]
                self._samples[feature.name].add(row_keys(known), column.drop_null().to_numpy().take)
            elif isinstance(feature, IdFeature) and feature.table in self._counted:
                self._count(feature.table, pc.list_flatten(column) if is_list(column.type) else column, feature.column)

    def _count(self, name: str, ids: pa.Array, field: str) -> None:
        if not pa.types.is_null(ids.type):
            self._counts_of(name, ids.type, field).add(ids)

    def _counts_of(self, name: str, dtype: pa.DataType, field: str) -> IdCounts:
        """Return the counts of a table for ids of a column.

        Raises:
            InvalidInputError: the ids counted so far have another type.
        """
        counts = self._counts.setdefault(name, IdCounts(dtype))
        first_field = self._first_columns.setdefault(name, field)
        if dtype != counts.dtype:
            other = (
                "rows read before" if first_field == field else f"column '{first_field}', which shares table '{name}'"
            )
            reason = f"holds {_type_name(dtype)}, but {_type_name(counts.dtype)} in {other}: write ids of one type"
            raise InvalidInputError(field, reason)
        return counts

    def part(self) -> Self:
        """Return an empty fitter for a part of the log."""
        part = type(self)(self._schema)
        part._samples = {name: sample.part() for name, sample in self._samples.items()}
        return part

    def merge(self, part: Self) -> None:
        """Add a part of the log, which follows the parts before.

        Raises:
            InvalidInputError: ids of one embedding table are text in one part and integers in another.
        """
        for name, counts in part._counts.items():
            self._counts_of(name, counts.dtype, part._first_columns[name]).merge(counts)
        for name, moments in part._moments.items():
            self._moments[name].merge(moments)
        for name, sample in part._samples.items():
            self._samples[name].merge(sample)
        self._rows += part._rows

    def encoder(self) -> Encoder:
        """Return the fitted encoder; vocabularies are in descending order of count, then in order of value."""
        id_mappings = {name: self._id_mapping(name, feature) for name, feature in self._schema.tables.items()}
        scales = {
            f.name: _with_bins(self._moments[f.name].scale(f), self._sample(f.name), f) for f in self._schema.numerics
        }
        return Encoder(self._schema, id_mappings, scales)

    def rare_shares(self) -> dict[str, float]:
        """Return the share of the training ids of each vocabulary that occur less often than ``min_count``."""
        return {
            name: self._counts[name].rare_share(feature.min_count) if name in self._counts else 0.0
            for name, feature in self._schema.tables.items()
            if isinstance(feature, IdFeature) and name in self._counted
        }

    def _sample(self, name: str) -> FloatArray:
        """Return the sampled numbers of a feature."""
        values = self._samples[name].rows()
        return np.empty(0) if values is None else values

    def _id_mapping(self, name: str, feature: SparseFeature) -> IdMapping:
        if isinstance(feature, BucketsFeature):
            if feature.count is None:
                return Bucketizer(np.array(feature.boundaries))
            return Bucketizer(_boundaries(self._sample(name), feature.count))
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
