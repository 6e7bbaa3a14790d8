"""Arrow columns → tensors. Fitted once on the training split; training, offline scoring and the service all use it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ranking.features import as_type
from ranking.schema import BagFeature, Schema, Task

IdArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MISSING = 0
"""Embedding row of a value that is not known."""
UNSEEN = 1
"""Embedding row of a value that the vocabulary does not hold."""


@dataclass(frozen=True)
class Bag:
    """Lists of embedding rows: ``values`` [sum of lengths] int64 and ``lengths`` [batch] int64."""

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Inputs:
    """A batch as tensors.

    Attributes:
        ids: embedding rows [batch, categorical features], int64.
        bags: one for each bag feature.
        dense: numbers [batch, dense columns], float32, never NaN.
        missing: which features were null [batch, features in order of declaration], bool.
    """

    ids: Tensor
    bags: tuple[Bag, ...]
    dense: Tensor
    missing: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Tensor) -> Inputs:
        """The rows at these positions [rows] int64, in their order."""
        return Inputs(
            self.ids[rows], tuple(_take(bag, rows) for bag in self.bags), self.dense[rows], self.missing[rows]
        )

    @staticmethod
    def concat(parts: list[Inputs]) -> Inputs:
        """All rows of the parts, one part after the other."""
        bags = zip(*(part.bags for part in parts), strict=True)
        return Inputs(
            torch.cat([part.ids for part in parts]),
            tuple(Bag(torch.cat([b.values for b in bag]), torch.cat([b.lengths for b in bag])) for bag in bags),
            torch.cat([part.dense for part in parts]),
            torch.cat([part.missing for part in parts]),
        )


def _take(bag: Bag, rows: Tensor) -> Bag:
    starts = torch.cumsum(bag.lengths, 0) - bag.lengths
    lengths = bag.lengths[rows]
    first = torch.cumsum(lengths, 0) - lengths
    within = torch.arange(int(lengths.sum())) - torch.repeat_interleave(first, lengths)
    return Bag(bag.values[torch.repeat_interleave(starts[rows], lengths) + within], lengths)


LARGEST = 1e15
"""Numbers are kept within ±this after scaling, so that no layer overflows float32."""


class Vocabulary:
    """Known ids of one embedding table, most frequent first; row 0 is missing, row 1 unseen, then the ids.

    Args:
        ids: int64 or string, without nulls or repeats.
    """

    def __init__(self, ids: pa.Array) -> None:
        self.ids = ids
        self._row: dict[Any, int] = {value: row for row, value in enumerate(ids.to_pylist(), start=UNSEEN + 1)}

    @property
    def size(self) -> int:
        """Rows of the embedding table."""
        return len(self.ids) + UNSEEN + 1

    def rows(self, values: pa.Array, field: str) -> IdArray:
        """Embedding rows [len(values)] int64; ``field`` names the column in an error."""
        values = values if pa.types.is_null(values.type) else as_type(values, self.ids.type, field)
        return _by_unique(values, lambda value: self._row.get(value, UNSEEN))


class HashBuckets:
    """Ids hashed into a fixed number of rows; row 0 is missing. An integer and its decimal text hash alike."""

    def __init__(self, buckets: int) -> None:
        self.size = buckets + 1

    def rows(self, values: pa.Array, field: str) -> IdArray:  # noqa: ARG002 — one interface with Vocabulary
        """Embedding rows [len(values)] int64."""
        return _by_unique(values, lambda value: 1 + stable_hash(value) % (self.size - 1))


def stable_hash(value: object) -> int:
    """63-bit hash of the value's text: the same on every machine and in every version."""
    return int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8).digest()) >> 1


def hash_column(column: pa.Array) -> IdArray:
    """Stable hash of each value [rows] int64; null → 0."""
    return _by_unique(column, stable_hash)


def _by_unique(column: pa.Array, function: Callable[[Any], int]) -> IdArray:
    """``function`` of each value, called once per distinct value; null → 0."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    encoded = column.dictionary_encode()
    of_unique = np.fromiter(map(function, encoded.dictionary.to_pylist()), np.int64, len(encoded.dictionary))
    indices = encoded.indices.fill_null(len(of_unique)).to_numpy(zero_copy_only=False)
    found: IdArray = np.append(of_unique, MISSING)[indices]
    return found


@dataclass(frozen=True)
class Scale:
    """How a number enters the model: (transformed number − shift) / scale, and as ``fill`` (the training mean) if null.

    Attributes:
        flagged: some training rows lacked the number, so the model also sees a column that says "missing".
    """

    shift: float
    scale: float
    fill: float
    flagged: bool


class Encoder:
    """Turns completed tables (see ``features.complete``) into ``Inputs``; made by ``fitting.EncoderFitter``.

    Args:
        schema: the features.
        id_spaces: embedding table → its ids.
        scales: numeric feature → its scale.
    """

    def __init__(
        self, schema: Schema, id_spaces: Mapping[str, Vocabulary | HashBuckets], scales: Mapping[str, Scale]
    ) -> None:
        self.schema = schema
        self.id_spaces = id_spaces
        self.scales = scales

    @property
    def dense_size(self) -> int:
        """Dense columns: the numbers, then a flag for each that was sometimes missing in training."""
        return len(self.scales) + sum(scale.flagged for scale in self.scales.values())

    def encode(self, table: pa.Table) -> Inputs:
        """Tensors for the table's rows.

        Raises:
            InvalidInputError: text ids where the ranker was trained on integers.
        """
        schema, rows = self.schema, table.num_rows
        columns = {feature.column: table[feature.column].combine_chunks() for feature in schema.features}
        ids = np.empty((rows, len(schema.categoricals)), np.int64)
        for i, feature in enumerate(schema.categoricals):
            ids[:, i] = self.id_spaces[feature.table].rows(columns[feature.column], feature.column)
        bags = tuple(self._bag(columns[bag.column], bag) for bag in schema.bags)
        dense = np.empty((rows, self.dense_size), np.float32)
        flag = len(schema.numerics)
        for i, number in enumerate(schema.numerics):
            scale, column = self.scales[number.name], columns[number.column]
            values = (transformed(column, number.transform) - scale.shift) / scale.scale
            unknown = np.isnan(values)
            dense[:, i] = np.where(unknown, scale.fill, np.clip(values, -LARGEST, LARGEST))
            if scale.flagged:
                dense[:, flag] = unknown
                flag += 1
        missing = np.empty((rows, len(schema.features)), np.bool_)
        for i, feature in enumerate(schema.features):  # type: ignore[assignment]
            missing[:, i] = columns[feature.column].is_null().to_numpy(zero_copy_only=False)
        return Inputs(torch.from_numpy(ids), bags, torch.from_numpy(dense), torch.from_numpy(missing))

    def _bag(self, column: pa.Array, bag: BagFeature) -> Bag:
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
        return Bag(torch.from_numpy(rows[np.argsort(owner, kind="stable")]), torch.from_numpy(lengths))

    def write(self, folder: Path) -> None:
        """Writes each vocabulary as ``vocabularies/TABLE.parquet`` and the numbers' scales as ``scales.parquet``."""
        (folder / "vocabularies").mkdir(parents=True)
        for name, space in self.id_spaces.items():
            if isinstance(space, Vocabulary):
                pq.write_table(pa.table({"id": space.ids}), folder / "vocabularies" / f"{name}.parquet")
        scales = pa.Table.from_pylist([{"feature": name, **vars(scale)} for name, scale in self.scales.items()], SCALES)
        pq.write_table(scales, folder / "scales.parquet")

    @classmethod
    def read(cls, folder: Path, schema: Schema) -> Self:
        """The encoder that ``write`` wrote for this schema."""
        id_spaces: dict[str, Vocabulary | HashBuckets] = {}
        for name, feature in schema.tables.items():
            if feature.hash_buckets is None:
                ids = pq.read_table(folder / "vocabularies" / f"{name}.parquet")["id"].combine_chunks()
                id_spaces[name] = Vocabulary(ids)
            else:
                id_spaces[name] = HashBuckets(feature.hash_buckets)
        scales = {row.pop("feature"): Scale(**row) for row in pq.read_table(folder / "scales.parquet").to_pylist()}
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
    values: FloatArray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.log1p(values) if transform == "log1p" else values


def encode_labels(table: pa.Table, tasks: Sequence[Task]) -> Tensor:
    """Labels [rows, tasks] float32, transformed as the task says; a null label → NaN."""
    columns = [transformed(table[task.label].combine_chunks(), task.transform) for task in tasks]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
