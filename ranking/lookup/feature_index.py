"""Encoded features of users or items by id, in arrays that processes share.

keys.npy, starts.npy, checks.npy   index from ids to rows, see ``ids.index``
rows.npy      one record of ``IndexLayout.row_dtype`` per id, then the record of an unknown id
values.npy    embedding rows of all lists of ids, concatenated
hashes.npy    hashes of the same ids, if the keys of counters contain lists of this owner
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch, RaggedIds, ragged_arange
from ranking.encoding.columns import cast_ids, invalid_rows, read_column, to_id_array
from ranking.encoding.encoder import Encoder, hash_lists
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.encoding.vocabulary import IdArray
from ranking.errors import InvalidInputError
from ranking.ids.index import IdIndex, RowArray, holds_text, write_id_index
from ranking.ids.npy import ArrayWriter, ReadFile, map_file, open_array
from ranking.schema import Owner, PooledFeature, Schema
from ranking.temporary_folders import temporary_folder

CHUNK_SIZE = 65_536
"""Number of rows that are encoded at once; limits the memory of building an index."""


@dataclass(frozen=True)
class IndexLayout:
    """Features in the index of one owner and the memory layout of its rows.

    Attributes:
        encoder: encoder of the owner's features. It has no crosses: they may change with another owner's features.
        parts: names of the owner's features with one id that are parts of crosses or of keys of counters, in order of
            declaration. The index holds the hashes of their ids.
        list_parts: the same for features with lists of ids.
        id_column: name of the id column.
    """

    encoder: Encoder
    parts: list[str]
    list_parts: list[str]
    id_column: str

    @classmethod
    def for_owner(cls, encoder: Encoder, owner: Owner) -> Self:
        """Return the layout of one owner's index; ``encoder`` is the encoder of all features."""
        schema = encoder.schema
        names = [feature.name for feature in schema.inputs if feature.owner == owner]
        hashed = {part for cross in schema.crosses for part in cross.of} | schema.key_parts
        lists = {bag.name for bag in schema.bags}
        return cls(
            encoder.restricted(names),
            [name for name in names if name in hashed - lists],
            [name for name in names if name in hashed & lists],
            str(schema.id_column(owner)),
        )

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Record type of a row; one record per id, so that a lookup reads one region of memory.

        Embedding tables have fewer than 2³¹ rows, so ``ids`` and ``values.npy`` use 32 bits.
        """
        schema = self.encoder.schema
        return np.dtype(
            [
                ("parts", "<i8", (len(self.parts),)),
                ("starts", "<i8", (len(schema.bags),)),  # Position of each list's first value in values.npy.
                ("lengths", "<i4", (len(schema.bags),)),
                ("ids", "<i4", (len(schema.categoricals),)),
                ("dense", "<f4", (self.encoder.dense_size,)),
                ("missing", "?", (len(schema.inputs),)),
            ]
        )


class FeatureIndex:
    """Encoded features of users or items by id.

    Args:
        layout: features and memory layout.
        index: index from ids to rows.
        id_type: type of the ids, int64 or string.
        rows: record of each id, then the record of an unknown id [ids + 1], of type ``layout.row_dtype``.
        values: embedding rows of all lists [values] int32.
        hashes: hashes of the same ids [values] int64; None without ``layout.list_parts``.

    Attributes:
        id_type: type of the ids.
    """

    def __init__(
        self,
        layout: IndexLayout,
        index: IdIndex,
        id_type: pa.DataType,
        rows: npt.NDArray[Any],
        values: npt.NDArray[np.int32],
        hashes: IdArray | None = None,
    ) -> None:
        self._layout = layout
        self._index = index
        self.id_type = id_type
        self._rows = rows
        self._values = values
        self._hashes = hashes
        bags = [bag.name for bag in self.schema.bags]
        self._hashed_bags = [bags.index(name) for name in layout.list_parts]

    def __len__(self) -> int:
        return len(self._index)

    @property
    def schema(self) -> Schema:
        """The owner's features without crosses: the columns of ``take``."""
        return self._layout.encoder.schema

    @property
    def parts(self) -> list[str]:
        """Names of the features with one id whose hashes the index holds: the columns of ``part_hashes``."""
        return self._layout.parts

    def rows(self, ids: Sequence[int | str | None] | npt.NDArray[Any] | pa.Array) -> RowArray:
        """Return the row of each id [n] int64, or ``NOT_FOUND`` (−1).

        Raises:
            InvalidInputError: an id is not an integer, but the ids of the index are.
        """
        if isinstance(ids, np.ndarray) and ids.dtype == np.int64 and self.id_type == pa.int64():
            return self._index.rows_from_values(ids)
        if isinstance(ids, list) and (self.id_type == pa.string() or set(map(type, ids)) == {int}):
            # Arrow would cost more than the lookup of a request's ids.
            with suppress(OverflowError, TypeError):  # An integer exceeds 64 bits, or an id is not text.
                return self._index.rows_from_values(ids)
        return self._index.rows(cast_ids(to_id_array(ids), self.id_type, self._layout.id_column))

    def take(self, rows: RowArray) -> EncodedBatch:
        """Return the encoded features of these rows [n]; row −1 is encoded like a row of nulls."""
        records = self._rows.take(rows)
        starts, lengths = records["starts"], records["lengths"]
        return EncodedBatch(
            records["ids"].astype(np.int64),
            tuple(self._lists(starts[:, i], lengths[:, i]) for i in range(starts.shape[1])),
            records["dense"].copy(),
            records["missing"].copy(),
        )

    def part_hashes(self, rows: RowArray) -> tuple[IdArray, list[RaggedIds]]:
        """Return the hashes of these rows' ids [n, parts] int64, and the hashes of their lists.

        They are those of the features in ``layout.parts`` and ``layout.list_parts``; 0 for null.
        """
        records = self._rows.take(rows)
        lists = []
        for bag in self._hashed_bags:
            assert self._hashes is not None
            counts = records["lengths"][:, bag].astype(np.int64)
            lists.append(RaggedIds(self._hashes.take(ragged_arange(records["starts"][:, bag], counts)), counts))
        return records["parts"].copy(), lists

    def _lists(self, starts: RowArray, lengths: npt.NDArray[np.int32]) -> RaggedIds:
        counts = lengths.astype(np.int64)
        return RaggedIds(self._values.take(ragged_arange(starts, counts)).astype(np.int64), counts)

    @classmethod
    def open(cls, folder: Path, encoder: Encoder, owner: Owner, read_file: ReadFile = map_file) -> Self:
        """Open an index that ``write_feature_index`` wrote with the same encoder; ``read_file`` returns its files.

        Raises:
            OSError, ValueError: the files are not an index of this layout.
        """
        layout = IndexLayout.for_owner(encoder, owner)
        id_type = pa.string() if holds_text(folder) else pa.int64()
        index = IdIndex.open(folder, id_type, read_file)
        rows = open_array(folder / "rows.npy", layout.row_dtype, read_file)
        if len(rows) != len(index) + 1:
            raise ValueError(f"rows.npy holds {len(rows)} rows, not {len(index) + 1}")
        values = open_array(folder / "values.npy", np.int32, read_file)
        hashes = open_array(folder / "hashes.npy", np.int64, read_file) if layout.list_parts else None
        if hashes is not None and len(hashes) != len(values):
            raise ValueError(f"hashes.npy holds {len(hashes)} rows, not {len(values)}")
        return cls(layout, index, id_type, rows, values, hashes)

    @classmethod
    def temporary(cls, table: FeatureTable, encoder: Encoder, owner: Owner) -> Self:
        """Build an index in a temporary folder; the mapped files are deleted but stay readable through the map."""
        with temporary_folder("index") as folder:
            write_feature_index(table, encoder, owner, folder / owner)
            return cls.open(folder / owner, encoder, owner)


def write_feature_index(table: FeatureTable, encoder: Encoder, owner: Owner, folder: Path) -> None:
    """Encode a feature table and write its index to a new folder.

    Args:
        table: features by id.
        encoder: encoder of all features.
        owner: owner of the table's features.
        folder: must not exist.

    Raises:
        InvalidInputError: a column has the wrong type or holds a NaN or infinite number, or two text ids have the same
            hash (names the row).
    """
    folder.mkdir()
    layout = IndexLayout.for_owner(encoder, owner)
    order = write_id_index(table.ids, folder, layout.id_column)
    unknown = pa.table({layout.id_column: pa.nulls(1, table.ids.type)})
    with ExitStack() as files:
        rows = files.enter_context(ArrayWriter(folder / "rows.npy", layout.row_dtype))
        values = files.enter_context(ArrayWriter(folder / "values.npy", np.int32))
        hashes = files.enter_context(ArrayWriter(folder / "hashes.npy", np.int64)) if layout.list_parts else None
        start = 0
        for first in range(0, len(order), CHUNK_SIZE):
            chunk = _take_valid(table.table, order[first : first + CHUNK_SIZE], layout.encoder.schema)
            start = _append(chunk, layout, rows, values, hashes, start)
        _append(fill_features(unknown, layout.encoder.schema, {}), layout, rows, values, hashes, start)


def _take_valid(table: pa.Table, rows: RowArray, schema: Schema) -> pa.Table:
    """Return these rows, completed and validated."""
    completed = fill_features(table.take(pa.array(rows)), schema, {})
    for feature, invalid, reason in invalid_rows(completed, schema):
        row = invalid.index(True).as_py()
        if row >= 0:
            raise InvalidInputError(feature.column, reason, int(rows[row]))
    return completed


def _append(
    table: pa.Table,
    layout: IndexLayout,
    rows: ArrayWriter,
    values: ArrayWriter,
    hashes: ArrayWriter | None,
    start: int,
) -> int:
    """Append a completed table's rows, whose lists begin at ``start`` of the values, and return the next start."""
    inputs = layout.encoder.encode(table)
    records = np.empty(table.num_rows, layout.row_dtype)
    records["parts"] = layout.encoder.hash_features(table, layout.parts)
    records["ids"], records["dense"], records["missing"] = inputs.ids, inputs.dense, inputs.missing
    for i, (feature, bag) in enumerate(zip(layout.encoder.schema.bags, inputs.bags, strict=True)):
        records["starts"][:, i] = start + np.cumsum(bag.lengths) - bag.lengths
        records["lengths"][:, i] = bag.lengths
        values.append(bag.values)
        if hashes is not None:
            is_part = feature.name in layout.list_parts
            hashes.append(_hash_bag(table, feature) if is_part else np.zeros(len(bag.values), np.int64))
        start += len(bag.values)
    rows.append(records)
    return start


def _hash_bag(table: pa.Table, feature: PooledFeature) -> IdArray:
    return hash_lists(read_column(table[feature.column].combine_chunks(), feature)).values
