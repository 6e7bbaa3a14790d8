"""Features of users and items by id, and the completion of rows from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranking.encoding.columns import canonical_ids, cast_ids, coalesce, to_canonical
from ranking.errors import InvalidInputError
from ranking.ids.index import NOT_FOUND, IdIndex
from ranking.schema import ID_OWNERS, InputFeature, NumberFeature, NumericFeature, Owner, Schema


class FeatureTable:
    """Features of users or items by id; published with the bundle and used for what a request leaves out.

    Args:
        table: one row per id.
        key: name of the id column.

    Attributes:
        ids: ids of the rows, int64 or string.

    Raises:
        InvalidInputError: the id column is missing, is neither text nor integers, holds a null, or repeats an id.
    """

    def __init__(self, table: pa.Table, key: str) -> None:
        if key not in table.column_names:
            raise InvalidInputError(key, f"the id column is missing (found: {', '.join(table.column_names)})")
        self.ids = canonical_ids(table[key].combine_chunks(), key)
        self.key_type: pa.DataType = self.ids.type
        if self.ids.null_count:
            row = self.ids.is_null().index(True).as_py()
            raise InvalidInputError(key, "an id is null: every row needs one", row)
        if len(self.ids.unique()) < len(self.ids):
            row = _first_repeated(self.ids)
            raise InvalidInputError(key, f"id {self.ids[row].as_py()!r} occurs twice: keep one row per id", row)
        self._index, order = IdIndex.build(self.ids, key)
        self._positions = np.append(order, NOT_FOUND)  # An id that is not found has the last position.
        self.table = table.combine_chunks()
        self.key = key

    def __len__(self) -> int:
        return len(self.ids)

    def contains(self, ids: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether the table has a row of each id [len(ids)].

        Raises:
            InvalidInputError: an id cannot be converted to the type of the table's ids.
        """
        contained: npt.NDArray[np.bool_] = self._index.rows(cast_ids(ids, self.key_type, self.key)) != NOT_FOUND
        return contained

    def columns(self, ids: pa.Array, columns: list[str]) -> dict[str, pa.Array]:
        """Return these columns with one value per id: null for an unknown id; columns not in the table are omitted."""
        encoded = cast_ids(ids, self.key_type, self.key).dictionary_encode()
        positions = self._positions[self._index.rows(encoded.dictionary)]
        rows = pa.array(positions, mask=positions == NOT_FOUND).take(encoded.indices)
        return {c: self.table[c].combine_chunks().take(rows) for c in columns if c in self.table.column_names}

    def values(self, table: pa.Table, columns: list[str]) -> dict[str, pa.Array]:
        """Return these columns for the rows of another table, looked up by its id column; empty if it has none."""
        if self.key not in table.column_names:
            return {}
        return self.columns(table[self.key].combine_chunks(), columns)


def _first_repeated(ids: pa.Array) -> int:
    """Return the position of the first id that occurs again later."""
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    return int(pc.is_in(ids, repeated).index(True).as_py())


class LazyFeatureTables(Mapping[Owner, FeatureTable]):
    """Feature tables of a bundle, read on first access because the service needs only the feature indexes.

    Args:
        folder: the bundle.
        schema: the bundle's features.

    Raises:
        OSError, ArrowException, ValueError: a file is not a feature table.
    """

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._keys = {owner: str(schema.id_column(owner)) for owner in ID_OWNERS}
        self._files = {  # Opened here because the folder may be deleted before the first access.
            owner: pq.ParquetFile(file) for owner in ID_OWNERS if (file := folder / f"{owner}s.parquet").exists()
        }
        for owner, file in self._files.items():
            if self._keys[owner] not in file.schema_arrow.names:
                raise ValueError(f"{owner}s.parquet has no column '{self._keys[owner]}'")
        self._tables: dict[Owner, FeatureTable] = {}
        self._lock = threading.Lock()

    def __getitem__(self, owner: Owner) -> FeatureTable:
        with self._lock:
            if owner not in self._tables:
                self._tables[owner] = FeatureTable(self._files[owner].read(), self._keys[owner])
            return self._tables[owner]

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def fill_features(table: pa.Table, schema: Schema, tables: Mapping[Owner, FeatureTable]) -> pa.Table:
    """Complete a table with every feature column of the schema in its canonical type; other columns are unchanged.

    A missing column or a null is filled by id from the table of its owner. Values unknown there stay null.

    Raises:
        InvalidInputError: a column's type is not valid for its feature.
    """
    features: dict[str, InputFeature] = {}
    id_features = [feature for feature in schema.inputs if not isinstance(feature, NumberFeature)]
    for feature in (*id_features, *schema.numbers):  # An id feature sets the type of a column that both kinds read.
        features.setdefault(feature.column, feature)
    fallbacks: dict[str, pa.Array] = {}
    for owner, feature_table in tables.items():
        fallbacks |= feature_table.values(table, schema.columns_of(owner))
    for name, feature in features.items():
        fallback = to_canonical(fallbacks[name], feature) if name in fallbacks else pa.nulls(table.num_rows)
        if name in table.column_names:
            column = coalesce(to_canonical(table[name], feature), fallback, feature)
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, fallback)
    for number in schema.numbers:  # A number may read the ids of another feature, but only if these are integers.
        if pa.types.is_string(table[number.column].type):
            usage = "numeric" if isinstance(number, NumericFeature) else "cut into buckets"
            raise InvalidInputError(number.column, f"holds text, but '{number.name}' is {usage}: write numbers")
    return table
