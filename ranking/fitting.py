"""Fits an encoder on the training split, one batch of rows at a time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding import Encoder, HashBuckets, Scale, Vocabulary, transformed
from ranking.features import as_type
from ranking.schema import NumericFeature, Schema


@dataclass
class _Moments:
    """Running mean and sum of squared deviations (Chan et al. 1979, pairwise update)."""

    count: int = 0
    nulls: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, column: pa.Array, transform: str) -> None:
        values = transformed(column.drop_null(), transform)
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
        flagged = self.nulls > 0
        if feature.transform == "none":
            return Scale(shift=0.0, scale=1.0, fill=self.mean, flagged=flagged)
        std = math.sqrt(self.squares / self.count) if self.low < self.high else 0.0
        return Scale(shift=self.mean, scale=std or 1.0, fill=0.0, flagged=flagged)


class EncoderFitter:
    """Counts ids and sums up numbers; ``add`` each batch of the training split, then take ``encoder()``.

    Args:
        schema: the features.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._counts: dict[str, Counter[Any]] = {
            name: Counter() for name, feature in schema.tables.items() if feature.hash_buckets is None
        }
        self._types: dict[str, pa.DataType] = {}
        self._moments = {feature.name: _Moments() for feature in schema.numerics}

    def add(self, table: pa.Table) -> None:
        """Takes a completed table (see ``features.complete``) into account.

        Raises:
            InvalidInputError: a column is text in one batch and integers in another.
        """
        for feature in self._schema.sparse:
            if feature.table in self._counts:
                column = table[feature.column].combine_chunks()
                self._count(feature.table, pc.list_flatten(column) if _is_list(column) else column, feature.column)
        for number in self._schema.numerics:
            self._moments[number.name].add(table[number.column].combine_chunks(), number.transform)

    def _count(self, name: str, ids: pa.Array, field: str) -> None:
        if pa.types.is_null(ids.type):
            return
        ids = as_type(ids, self._types.setdefault(name, ids.type), field)
        counts = pc.value_counts(ids.drop_null())
        self._counts[name].update(dict(zip(*(counts.field(i).to_pylist() for i in (0, 1)), strict=True)))

    def encoder(self) -> Encoder:
        """The encoder for what was added: ids by falling count (ties by value), numbers by mean and deviation."""
        spaces: dict[str, Vocabulary | HashBuckets] = {}
        for name, feature in self._schema.tables.items():
            if feature.hash_buckets is None:
                counts = self._counts[name]
                kept = sorted((v for v, n in counts.items() if n >= feature.min_count), key=lambda v: (-counts[v], v))
                spaces[name] = Vocabulary(pa.array(kept, self._types.get(name, pa.string())))
            else:
                spaces[name] = HashBuckets(feature.hash_buckets)
        scales = {f.name: self._moments[f.name].scale(f) for f in self._schema.numerics}
        return Encoder(self._schema, spaces, scales)


def _is_list(column: pa.Array) -> bool:
    return bool(pa.types.is_large_list(column.type))
