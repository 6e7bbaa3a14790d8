"""Arrow columns → arrays. Fitted once on the training split; training, offline scoring and the service all use it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranking.encoding.batch import EncodedBatch, Float32, RaggedIds
from ranking.encoding.columns import read_column
from ranking.encoding.vocabulary import (
    MISSING,
    Bucketizer,
    FloatArray,
    HashBuckets,
    IdArray,
    IdMapping,
    Vocabulary,
    hash_column,
)
from ranking.schema import BucketsFeature, Columns, CrossFeature, PooledFeature, Schema, SingleFeature, Task

LARGEST = 1e15
"""Numbers are kept within ±this after scaling, so that no layer overflows float32."""


@dataclass(frozen=True)
class Scale:
    """How a number enters the model: (transformed number − shift) / scale, and as ``fill`` (the training mean) if null.

    Attributes:
        flagged: some training rows lacked the number, so the model also sees a column that says "missing".
    """

    shift: float
    scale: float
    fill: float
    has_missing_indicator: bool

    def apply(self, numbers: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Scaled numbers, never NaN, and which were unknown.

        Args:
            numbers: after their transform [rows]; NaN where null.
        """
        numbers = scaled(numbers, self.shift, self.scale)
        unknown = np.isnan(numbers)
        return np.where(unknown, self.fill, numbers), unknown


def scaled(numbers: FloatArray, shift: float | FloatArray, scale: float | FloatArray) -> FloatArray:
    """Numbers as the model reads them, NaN where they are."""
    return np.clip((numbers - shift) / scale, -LARGEST, LARGEST)


class Encoder:
    """Turns completed tables (see ``features.complete``) into ``EncodedBatch``; made by ``fitting.EncoderFitter``.

    Args:
        schema: the features.
        id_spaces: embedding table → its ids.
        scales: numeric feature → its scale.
    """

    def __init__(self, schema: Schema, id_spaces: Mapping[str, IdMapping], scales: Mapping[str, Scale]) -> None:
        self.schema = schema
        self.id_spaces = id_spaces
        self.scales = scales

    @property
    def dense_size(self) -> int:
        """Dense columns: the numbers, then a flag for each that was sometimes missing in training."""
        return len(self.scales) + sum(scale.has_missing_indicator for scale in self.scales.values())

    def encode(self, table: pa.Table) -> EncodedBatch:
        """The table's rows as arrays.

        Raises:
            InvalidInputError: text ids where the ranker was trained on integers.
        """
        schema, rows = self.schema, table.num_rows
        given, single, numerics = schema.inputs, schema.categoricals, schema.numerics
        columns = {feature.column: table[feature.column].combine_chunks() for feature in given}
        values = {feature.name: read_column(columns[feature.column], feature) for feature in given}
        ids = np.empty((rows, len(single)), np.int64)
        for i, feature in enumerate(single):
            ids[:, i] = self._rows(values, feature)
        bags = tuple(self.bag(values[bag.name], bag) for bag in schema.bags)
        dense = np.empty((rows, self.dense_size), np.float32)
        flag = len(numerics)
        for i, number in enumerate(numerics):
            scale = self.scales[number.name]
            dense[:, i], unknown = scale.apply(transformed(values[number.name], number.transform))
            if scale.has_missing_indicator:
                dense[:, flag] = unknown
                flag += 1
        missing = np.empty((rows, len(given)), np.bool_)
        for i, read in enumerate(given):
            missing[:, i] = columns[read.column].is_null().to_numpy(zero_copy_only=False)
        return EncodedBatch(ids, bags, dense, missing)

    def hashes(self, table: pa.Table, names: Sequence[str]) -> IdArray:
        """Hashes of these features' values [rows, names] int64, as ``HashBuckets.crossed`` takes them."""
        hashes = np.empty((table.num_rows, len(names)), np.int64)
        features = {feature.name: feature for feature in self.schema.inputs}
        for i, name in enumerate(names):
            column = table[features[name].column].combine_chunks()
            hashes[:, i] = hash_column(read_column(column, features[name]))
        return hashes

    def restricted(self, names: Collection[str]) -> Encoder:
        """The encoder of these features alone, see ``Schema.restricted``."""
        schema = self.schema.restricted(names)
        spaces = {table: self.id_spaces[table] for table in schema.tables}
        return Encoder(schema, spaces, {number.name: self.scales[number.name] for number in schema.numerics})

    def _rows(self, values: Mapping[str, pa.Array], feature: SingleFeature) -> IdArray:
        space = self.id_spaces[feature.table]
        if not isinstance(feature, CrossFeature):
            return space.rows(values[feature.name], feature.column)
        assert isinstance(space, HashBuckets)
        return space.crossed([hash_column(values[name]) for name in feature.of])

    def bag(self, column: pa.Array, bag: PooledFeature) -> RaggedIds:
        """Rows of each list's ids; a null list is one missing id, nulls inside a list are left out."""
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), pa.large_list(pa.int64()))
        unknown = column.is_null().to_numpy(zero_copy_only=False)
        owner, values = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)
        known = values.is_valid().to_numpy(zero_copy_only=False)
        rows = self.id_spaces[bag.table].rows(values.filter(pa.array(known)), bag.column)
        owner = np.concatenate([owner[known], np.flatnonzero(unknown)])
        rows = np.concatenate([rows, np.full(unknown.sum(), MISSING, np.int64)])
        lengths = np.bincount(owner, minlength=len(column))
        return RaggedIds(rows[np.argsort(owner, kind="stable")], lengths)

    def write(self, folder: Path) -> None:
        """Writes ``vocabularies/TABLE.parquet``, ``buckets/TABLE.parquet`` and, of all numbers, ``scales.parquet``."""
        (folder / "vocabularies").mkdir(parents=True)
        for name, space in self.id_spaces.items():
            if isinstance(space, Vocabulary):
                pq.write_table(pa.table({"id": space.ids}), folder / "vocabularies" / f"{name}.parquet")
            elif isinstance(space, Bucketizer):
                (folder / "buckets").mkdir(exist_ok=True)
                pq.write_table(pa.table({"boundary": space.boundaries}), folder / "buckets" / f"{name}.parquet")
        scales = [
            {
                "feature": name,
                "shift": scale.shift,
                "scale": scale.scale,
                "fill": scale.fill,
                "flagged": scale.has_missing_indicator,
            }
            for name, scale in self.scales.items()
        ]
        pq.write_table(pa.Table.from_pylist(scales, SCALES), folder / "scales.parquet")

    @classmethod
    def read(cls, folder: Path, schema: Schema) -> Self:
        """The encoder that ``write`` wrote for this schema."""
        id_spaces: dict[str, IdMapping] = {}
        for name, feature in schema.tables.items():
            if isinstance(feature, BucketsFeature):
                id_spaces[name] = Bucketizer(
                    pq.read_table(folder / "buckets" / f"{name}.parquet")["boundary"].to_numpy()
                )
            elif feature.hash_buckets is not None:
                id_spaces[name] = HashBuckets(feature.hash_buckets)
            else:
                ids = pq.read_table(folder / "vocabularies" / f"{name}.parquet")["id"].combine_chunks()
                id_spaces[name] = Vocabulary(ids)
        scales = {
            row["feature"]: Scale(row["shift"], row["scale"], row["fill"], row["flagged"])
            for row in pq.read_table(folder / "scales.parquet").to_pylist()
        }
        return cls(schema, id_spaces, scales)


SCALES = pa.schema(
    [
        ("feature", pa.string()),
        ("shift", pa.float64()),
        ("scale", pa.float64()),
        ("fill", pa.float64()),
        ("flagged", pa.bool_()),
    ]
)


def transformed(column: pa.Array, transform: str) -> FloatArray:
    """The numbers [rows] float64 after ``none`` or ``log1p`` (``standardise`` comes later); null → NaN."""
    return transform_numbers(column.cast(pa.float64()).to_numpy(zero_copy_only=False), transform)


def transform_numbers(numbers: FloatArray, transform: str) -> FloatArray:
    """``transformed`` of an array in which a null is NaN."""
    return np.log1p(numbers) if transform == "log1p" else numbers


def encode_labels(table: pa.Table, tasks: Sequence[Task]) -> Float32:
    """Labels [rows, tasks] float32, transformed as the task says; NaN where null or masked."""
    columns = []
    for task in tasks:
        label = transformed(table[task.label].combine_chunks(), task.transform)
        if task.mask is not None:
            counts = transformed(table[task.mask].combine_chunks(), "none") == 1.0
            label = np.where(counts, label, np.nan)
        columns.append(label)
    return np.stack(columns, axis=1).astype(np.float32)


def encode_weights(table: pa.Table, columns: Columns) -> Float32:
    """How much each row counts [rows] float32: 1 where null, or if there is no such column."""
    if columns.weight is None:
        return np.ones(table.num_rows, np.float32)
    weights = transformed(table[columns.weight].combine_chunks(), "none")
    return np.where(np.isnan(weights), 1.0, weights).astype(np.float32)
