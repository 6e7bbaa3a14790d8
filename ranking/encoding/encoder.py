"""Encode Arrow columns as arrays; training, offline scoring and the service share the encoder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranking.encoding.batch import EncodedBatch, Float32, RaggedIds
from ranking.encoding.bins import Bins
from ranking.encoding.columns import read_column
from ranking.encoding.id_rows import MISSING
from ranking.encoding.vocabulary import Bucketizer, FloatArray, HashBuckets, IdArray, IdMapping, Vocabulary, hash_column
from ranking.ids.npy import ReadFile, map_file
from ranking.regular_files import read_parquet
from ranking.schema import (
    BucketsFeature,
    Columns,
    CrossFeature,
    NumericFeature,
    PooledFeature,
    Schema,
    SingleFeature,
    Task,
)

MAX_ABS_VALUE = 1e15
"""Scaled numbers without a limit of their own are clipped to ±this value so that no layer overflows float32."""

SCALES_SCHEMA = pa.schema(
    [
        ("feature", pa.string()),
        ("shift", pa.float64()),
        ("scale", pa.float64()),
        ("fill", pa.float64()),
        ("flagged", pa.bool_()),
        ("clip", pa.float64()),
        ("edges", pa.list_(pa.float32())),
    ]
)
"""Columns of ``scales.parquet``; ``flagged`` is ``Scale.has_missing_indicator``.

Version 0.1.0 wrote neither ``clip`` nor ``edges``.
"""


@dataclass(frozen=True)
class Scale:
    """Scaling of a numeric feature: (transformed number − shift) / scale.

    Attributes:
        shift: subtracted from the transformed number.
        scale: divisor.
        fill: value of a null (the training mean after scaling).
        has_missing_indicator: whether the model has an extra input that is 1 where the number is missing. It exists
            only for features with enough nulls in training, see ``encoder_fitter.MIN_INDICATED``.
        clip: limit of the absolute scaled number; None for no limit.
        edges: edges of the bins of the scaled number, ascending; empty for no bins.
    """

    shift: float
    scale: float
    fill: float
    has_missing_indicator: bool
    clip: float | None = None
    edges: tuple[float, ...] = ()

    @property
    def limit(self) -> float:
        """Maximum absolute value of a scaled number."""
        return MAX_ABS_VALUE if self.clip is None else min(self.clip, MAX_ABS_VALUE)

    def apply(self, numbers: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return the scaled numbers [rows], never NaN, and a mask [rows] of the missing ones.

        Args:
            numbers: transformed numbers [rows]; NaN where null.
        """
        numbers = scale_numbers(numbers, self.shift, self.scale, self.limit)
        missing = np.isnan(numbers)
        return np.where(missing, self.fill, numbers), missing


def scale_numbers(
    numbers: FloatArray, shift: float | FloatArray, scale: float | FloatArray, limit: float | FloatArray
) -> FloatArray:
    """Shift, scale and clip numbers to ±``limit``; NaN stays NaN."""
    return np.clip((numbers - shift) / scale, -limit, limit)


class Encoder:
    """Encodes tables completed by ``fill_features`` as ``EncodedBatch``; fitted by ``EncoderFitter``.

    Args:
        schema: the features.
        id_mappings: mapping of each embedding table.
        scales: scaling of each numeric feature.
    """

    def __init__(self, schema: Schema, id_mappings: Mapping[str, IdMapping], scales: Mapping[str, Scale]) -> None:
        self.schema = schema
        self.id_mappings = id_mappings
        self.scales = scales

    @cached_property
    def bins(self) -> Bins:
        """Bins of the dense columns."""
        return Bins.of({i: self.scales[number.name].edges for i, number in enumerate(self.schema.numerics)})

    @property
    def dense_size(self) -> int:
        """Number of dense columns: one per numeric feature, then the missing indicators."""
        return len(self.scales) + sum(scale.has_missing_indicator for scale in self.scales.values())

    def encode(self, table: pa.Table) -> EncodedBatch:
        """Encode the rows of a table.

        Raises:
            InvalidInputError: a column holds text ids, but the training log held integers.
        """
        schema, rows = self.schema, table.num_rows
        columns = {feature.column: table[feature.column].combine_chunks() for feature in schema.inputs}
        values = {feature.name: read_column(columns[feature.column], feature) for feature in schema.inputs}
        ids = np.empty((rows, len(schema.categoricals)), np.int64)
        for i, feature in enumerate(schema.categoricals):
            ids[:, i] = self._embedding_rows(values, feature)
        bags = tuple(self.encode_bag(values[bag.name], bag) for bag in schema.bags)
        dense = np.empty((rows, self.dense_size), np.float32)
        indicator = len(schema.numerics)
        for i, number in enumerate(schema.numerics):
            scale = self.scales[number.name]
            dense[:, i], is_missing = scale.apply(transform_column(values[number.name], number.transform))
            if scale.has_missing_indicator:
                dense[:, indicator] = is_missing
                indicator += 1
        missing = np.empty((rows, len(schema.inputs)), np.bool_)
        for i, source in enumerate(schema.inputs):
            missing[:, i] = columns[source.column].is_null().to_numpy(zero_copy_only=False)
        return EncodedBatch(ids, bags, dense, missing)

    def hash_features(self, table: pa.Table, names: Sequence[str]) -> IdArray:
        """Return the hashes of these features [rows, names] int64, the input of ``HashBuckets.cross_rows``."""
        hashes = np.empty((table.num_rows, len(names)), np.int64)
        features = {feature.name: feature for feature in self.schema.inputs}
        for i, name in enumerate(names):
            column = table[features[name].column].combine_chunks()
            hashes[:, i] = hash_column(read_column(column, features[name]))
        return hashes

    def restricted(self, names: Collection[str]) -> Encoder:
        """Return an encoder of these features only, see ``Schema.restricted``."""
        schema = self.schema.restricted(names)
        id_mappings = {table: self.id_mappings[table] for table in schema.tables}
        return Encoder(schema, id_mappings, {number.name: self.scales[number.name] for number in schema.numerics})

    def _embedding_rows(self, values: Mapping[str, pa.Array], feature: SingleFeature) -> IdArray:
        id_mapping = self.id_mappings[feature.table]
        if not isinstance(feature, CrossFeature):
            return id_mapping.rows(values[feature.name], feature.column)
        assert isinstance(id_mapping, HashBuckets)
        return id_mapping.cross_rows([hash_column(values[name]) for name in feature.of])

    def encode_bag(self, column: pa.Array, bag: PooledFeature) -> RaggedIds:
        """Return the embedding rows of each list; a null list becomes one missing id, nulls in a list are dropped."""
        return _map_lists(column, lambda ids: self.id_mappings[bag.table].rows(ids, bag.column))

    def write(self, folder: Path) -> None:
        """Write ``vocabularies/TABLE.parquet``, ``buckets/TABLE.parquet`` and ``scales.parquet``.

        A large vocabulary also gets a folder ``vocabularies/TABLE`` with arrays for its lookup.
        """
        (folder / "vocabularies").mkdir(parents=True)
        for name, id_mapping in self.id_mappings.items():
            if isinstance(id_mapping, Vocabulary):
                id_mapping.write(folder / "vocabularies" / f"{name}.parquet")
            elif isinstance(id_mapping, Bucketizer):
                (folder / "buckets").mkdir(exist_ok=True)
                pq.write_table(pa.table({"boundary": id_mapping.boundaries}), folder / "buckets" / f"{name}.parquet")
        scales = [
            {
                "feature": name,
                "shift": scale.shift,
                "scale": scale.scale,
                "fill": scale.fill,
                "flagged": scale.has_missing_indicator,
                "clip": scale.clip,
                "edges": scale.edges,
            }
            for name, scale in self.scales.items()
        ]
        pq.write_table(pa.Table.from_pylist(scales, SCALES_SCHEMA), folder / "scales.parquet")

    @classmethod
    def read(cls, folder: Path, schema: Schema, read_file: ReadFile = map_file) -> Self:
        """Read an encoder that ``write`` wrote for the same schema.

        ``clip`` and ``bins`` of its schema are what the scales apply.

        Args:
            folder: its folder.
            schema: the schema.
            read_file: returns the content of a file with an array of a vocabulary.
        """
        id_mappings: dict[str, IdMapping] = {}
        for name, feature in schema.tables.items():
            if isinstance(feature, BucketsFeature):
                boundaries = read_parquet(folder / "buckets" / f"{name}.parquet")["boundary"].to_numpy()
                id_mappings[name] = Bucketizer(boundaries)
            elif feature.hash_buckets is not None:
                id_mappings[name] = HashBuckets(feature.hash_buckets)
            else:
                id_mappings[name] = Vocabulary.open(folder / "vocabularies" / f"{name}.parquet", read_file)
        rows = {row["feature"]: row for row in read_parquet(folder / "scales.parquet").to_pylist()}
        scales = {
            name: Scale(
                row["shift"], row["scale"], row["fill"], row["flagged"], row.get("clip"), tuple(row.get("edges") or ())
            )
            for name, row in rows.items()
        }
        applied = {name: _applied_settings(row) for name, row in rows.items()}
        features = tuple(
            feature.model_copy(update=applied[feature.name]) if isinstance(feature, NumericFeature) else feature
            for feature in schema.features
        )
        return cls(schema.model_copy(update={"features": features}), id_mappings, scales)


def _applied_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a row of ``scales.parquet`` applies.

    A schema that an earlier version wrote lacks those that did not exist yet, so that it would have their defaults.
    """
    clip = row.get("clip")
    return {"clip": "none" if clip is None else clip} | ({} if row.get("edges") is not None else {"bins": 0})


def hash_lists(column: pa.Array, hash_ids: Callable[[pa.Array], IdArray] = hash_column) -> RaggedIds:
    """Return the hashes of the ids of each list; a null list becomes one 0, and nulls in a list are dropped.

    Args:
        column: canonical lists.
        hash_ids: function with the results of ``hash_column``.
    """
    return _map_lists(column, hash_ids)


def _map_lists(column: pa.Array, function: Callable[[pa.Array], IdArray]) -> RaggedIds:
    """Apply a function to the ids of all lists; a null list becomes one 0, nulls in a list are dropped."""
    if pa.types.is_null(column.type):
        column = pa.nulls(len(column), pa.large_list(pa.int64()))
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    parents, values = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    parents = np.concatenate([parents[valid], np.flatnonzero(is_null)])
    mapped = np.concatenate([function(values.filter(pa.array(valid))), np.full(is_null.sum(), MISSING, np.int64)])
    lengths = np.bincount(parents, minlength=len(column))
    return RaggedIds(mapped[np.argsort(parents, kind="stable")], lengths)


def transform_column(column: pa.Array, transform: str) -> FloatArray:
    """Return the numbers [rows] float64 after ``log1p`` or unchanged; null gives NaN.

    ``standardise`` leaves them unchanged here: ``Scale`` applies it.
    """
    return transform_numbers(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), transform)


def transform_numbers(numbers: FloatArray, transform: str) -> FloatArray:
    """Return the same as ``transform_column`` for an array whose nulls are NaN."""
    return np.log1p(numbers) if transform == "log1p" else numbers


def encode_labels(table: pa.Table, tasks: Sequence[Task]) -> Float32:
    """Return the transformed labels [rows, tasks] float32; NaN where null or masked."""
    columns = []
    for task in tasks:
        label = transform_column(table[task.label].combine_chunks(), task.transform)
        if task.mask is not None:
            is_used = transform_column(table[task.mask].combine_chunks(), "none") == 1.0
            label = np.where(is_used, label, np.nan)
        columns.append(label)
    return np.stack(columns, axis=1).astype(np.float32)


def encode_weights(table: pa.Table, columns: Columns) -> Float32:
    """Return the weight of each row [rows] float32: 1 where null, or if the schema names no weight column."""
    if columns.weight is None:
        return np.ones(table.num_rows, np.float32)
    weights = transform_column(table[columns.weight].combine_chunks(), "none")
    return np.where(np.isnan(weights), 1.0, weights).astype(np.float32)
