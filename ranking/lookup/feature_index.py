"""The features of users or items by id, already encoded: looked up online by one gather, shared by processes as a map.

keys.npy, starts.npy, text.npy, ends.npy   where each id stands, see ``id_index``
rows.npy      what is encoded of each id, and last what is of an id that the table does not hold: ``Layout``
values.npy    embedding rows of all bags, one bag after the other
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch, RaggedIds, ragged_arange
from ranking.encoding.columns import FeatureTable, as_type, fill_features, id_array, invalid_rows
from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import IdArray
from ranking.errors import InvalidInputError
from ranking.lookup import id_index
from ranking.lookup.id_index import IdIndex, RowArray
from ranking.lookup.npy import ArrayWriter, open_array
from ranking.schema import Owner, Schema

CHUNK = 65_536
"""Rows that are encoded at a time; bounds the memory of building."""


@dataclass(frozen=True)
class Layout:
    """What an owner's table holds, and how a row of it lies in memory.

    Attributes:
        encoder: of the owner's features alone, crosses left out: those can change with another owner's features.
        parts: names of the owner's features that crosses are made of, in order of declaration.
        key: the id's column.
    """

    encoder: Encoder
    parts: list[str]
    key: str

    @classmethod
    def for_owner(cls, encoder: Encoder, owner: Owner) -> Self:
        """The layout of one owner's table; ``encoder`` is that of all features."""
        schema = encoder.schema
        names = [feature.name for feature in schema.inputs if feature.owner == owner]
        crossed = {part for cross in schema.crosses for part in cross.of}
        return cls(encoder.restricted(names), [n for n in names if n in crossed], str(schema.id_column(owner)))

    @property
    def row(self) -> np.dtype[Any]:
        """One record, so that all of a row is read at once.

        Embedding tables have fewer than 2³¹ rows, so ``ids`` and ``values.npy`` do with 32 bits.
        """
        schema = self.encoder.schema
        return np.dtype(
            [
                ("parts", "<i8", (len(self.parts),)),
                ("starts", "<i8", (len(schema.bags),)),  # of each bag's values
                ("lengths", "<i4", (len(schema.bags),)),
                ("ids", "<i4", (len(schema.categoricals),)),
                ("dense", "<f4", (self.encoder.dense_size,)),
                ("missing", "?", (len(schema.inputs),)),
            ]
        )


class FeatureIndex:
    """The features of users or items by id, already encoded.

    Args:
        layout: what it holds.
        index: where each id stands.
        kind: of the ids, int64 or string.
        rows: ``layout.row`` of each id, then that of an unknown id [ids + 1].
        values: embedding rows of all bags [values] int32.
    """

    def __init__(
        self,
        layout: Layout,
        index: IdIndex,
        kind: pa.DataType,
        rows: npt.NDArray[Any],
        values: npt.NDArray[np.int32],
    ) -> None:
        self._layout = layout
        self._index = index
        self._kind = kind
        self._rows = rows
        self._values = values

    def __len__(self) -> int:
        return len(self._index)

    @property
    def schema(self) -> Schema:
        """The owner's features, crosses left out: what the columns of ``take`` are."""
        return self._layout.encoder.schema

    @property
    def part_names(self) -> list[str]:
        """Names of the features that the columns of ``parts`` are, in order of declaration."""
        return self._layout.parts

    def rows(self, ids: Sequence[int | str | None] | npt.NDArray[Any] | pa.Array) -> RowArray:
        """The row of each id [n] int64, −1 where the table does not hold it.

        Raises:
            InvalidInputError: text that is no integer where the table's ids are integers.
        """
        if isinstance(ids, np.ndarray) and ids.dtype == np.int64 and self._kind == pa.int64():
            return self._index.rows_of(ids)
        if isinstance(ids, list) and set(map(type, ids)) == {int if self._kind == pa.int64() else str}:
            with suppress(OverflowError):  # an integer of more than 64 bits
                return self._index.rows_of(ids)  # what requests hold: Arrow would cost more than the look-up
        return self._index.rows(as_type(id_array(ids), self._kind, self._layout.key))

    def take(self, rows: RowArray) -> EncodedBatch:
        """What is encoded of these rows [n]; of −1 what ``Encoder.encode`` gives if all is null."""
        taken = self._rows.take(rows)
        return EncodedBatch(
            taken["ids"].astype(np.int64),
            tuple(self._bag(taken["starts"][:, i], taken["lengths"][:, i]) for i in range(len(self.schema.bags))),
            taken["dense"].copy(),
            taken["missing"].copy(),
        )

    def parts(self, rows: RowArray) -> IdArray:
        """Hashes of what these rows' crosses are made of [n, part_names] int64, for ``HashBuckets.crossed``."""
        parts: IdArray = self._rows.take(rows)["parts"].copy()
        return parts

    def _bag(self, starts: RowArray, lengths: npt.NDArray[np.int32]) -> RaggedIds:
        counts = lengths.astype(np.int64)
        return RaggedIds(self._values.take(ragged_arange(starts, counts)).astype(np.int64), counts)

    @classmethod
    def open(cls, folder: Path, encoder: Encoder, owner: Owner) -> Self:
        """The table that ``write_feature_index`` wrote for this encoder, mapped.

        Raises:
            OSError, ValueError: the files are not those of such a table.
        """
        layout = Layout.for_owner(encoder, owner)
        kind = pa.string() if (folder / "text.npy").exists() else pa.int64()
        index, rows = IdIndex.open(folder, kind), open_array(folder / "rows.npy", layout.row)
        if len(rows) != len(index) + 1:
            raise ValueError(f"rows.npy holds {len(rows)} rows, not {len(index) + 1}")
        return cls(layout, index, kind, rows, open_array(folder / "values.npy", np.int32))

    @classmethod
    def temporary(cls, table: FeatureTable, encoder: Encoder, owner: Owner) -> Self:
        """The table without files that stay: what is mapped lives as long as the map."""
        with tempfile.TemporaryDirectory() as folder:
            write_feature_index(table, encoder, owner, Path(folder) / owner)
            return cls.open(Path(folder) / owner, encoder, owner)


def write_feature_index(table: FeatureTable, encoder: Encoder, owner: Owner, folder: Path) -> None:
    """Encodes a table and writes it to a new folder.

    Args:
        table: features by id.
        encoder: of all features.
        owner: whose features these are.
        folder: where; must not exist.

    Raises:
        InvalidInputError: a column of the wrong type, a NaN or infinite number (names the row).
    """
    folder.mkdir()
    layout = Layout.for_owner(encoder, owner)
    order = id_index.write_id_index(table.ids, folder)
    unknown = pa.table({layout.key: pa.nulls(1, table.ids.type)})
    with ArrayWriter(folder / "rows.npy", layout.row) as rows, ArrayWriter(folder / "values.npy", np.int32) as values:
        start = 0
        for first in range(0, len(order), CHUNK):
            chosen = order[first : first + CHUNK]
            start = _append(_valid(table.table, chosen, layout.encoder.schema), layout, rows, values, start)
        _append(fill_features(unknown, layout.encoder.schema, {}), layout, rows, values, start)


def _valid(table: pa.Table, rows: RowArray, schema: Schema) -> pa.Table:
    """These rows with every feature in its canonical column."""
    whole = fill_features(table.take(pa.array(rows)), schema, {})
    for feature, broken, how in invalid_rows(whole, schema):
        row = broken.index(True).as_py()
        if row >= 0:
            raise InvalidInputError(feature.column, how, int(rows[row]))
    return whole


def _append(table: pa.Table, layout: Layout, rows: ArrayWriter, values: ArrayWriter, start: int) -> int:
    """Writes a completed table's rows, whose bags' values begin at ``start``; where the next ones begin."""
    inputs = layout.encoder.encode(table)
    records = np.empty(table.num_rows, layout.row)
    records["parts"] = layout.encoder.hashes(table, layout.parts)
    records["ids"], records["dense"], records["missing"] = inputs.ids, inputs.dense, inputs.missing
    for i, bag in enumerate(inputs.bags):
        records["starts"][:, i] = start + np.cumsum(bag.lengths) - bag.lengths
        records["lengths"][:, i] = bag.lengths
        values.append(bag.values)
        start += len(bag.values)
    rows.append(records)
    return start
