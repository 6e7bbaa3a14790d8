"""Keys of counters: a hash of the ids that a counter is kept for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ranking.encoding.batch import RaggedIds
from ranking.encoding.columns import read_column
from ranking.encoding.encoder import hash_lists
from ranking.encoding.vocabulary import IdArray, hash_column, mix_hashes
from ranking.schema import ID_OWNERS, Counter, PooledFeature, Schema

NO_KEY = 0
"""Key of rows in which a part of the key is null."""

HashIds = Callable[[pa.Array], IdArray]
"""Function that returns a hash per id [rows] int64; 0 for null."""


@dataclass(frozen=True)
class PartHashes:
    """Hashes of the ids that form keys.

    Attributes:
        rows: number of rows.
        singles: hash of the id of each row, by feature [rows] int64; 0 for null.
        lists: hashes of the ids of each row, by feature with lists; those of nulls are 0.
    """

    rows: int
    singles: Mapping[str, IdArray]
    lists: Mapping[str, RaggedIds]

    @classmethod
    def from_table(cls, table: pa.Table, schema: Schema, hash_ids: HashIds = hash_column) -> PartHashes:
        """Hash the columns of a completed table that counters and histories of the schema need.

        Args:
            table: the completed table.
            schema: schema with counters and histories.
            hash_ids: function with the results of ``hash_column``, such as one with a cache.
        """
        names = schema.key_parts
        singles, lists = {}, {}
        for feature in schema.inputs:
            if feature.name not in names:
                continue
            column = read_column(table[feature.column].combine_chunks(), feature)
            if isinstance(feature, PooledFeature):
                lists[feature.name] = hash_lists(column, hash_ids)
            else:
                singles[feature.name] = hash_ids(column)
        return cls(table.num_rows, singles, lists)

    def take(self, rows: IdArray) -> PartHashes:
        """Return the hashes of these rows [n]."""
        singles = {name: hashes.take(rows) for name, hashes in self.singles.items()}
        return PartHashes(len(rows), singles, {name: hashes.take(rows) for name, hashes in self.lists.items()})

    def __or__(self, other: PartHashes) -> PartHashes:
        """Return the hashes of both, for the same rows."""
        return PartHashes(self.rows, {**self.singles, **other.singles}, {**self.lists, **other.lists})


@dataclass(frozen=True)
class CounterKeys:
    """Keys of one counter for some rows; a row has several keys if a part of the key is a list.

    Attributes:
        keys: distinct keys of each row [n] int64; rows without a key are left out.
        rows: row of each key [n] int64, ascending.
        one_per_row: whether each row has exactly one key.
    """

    keys: IdArray
    rows: IdArray
    one_per_row: bool = False


def counter_keys(counter: Counter, hashes: PartHashes) -> CounterKeys:
    """Return the keys of a counter.

    Args:
        counter: the counter.
        hashes: hashes of at least the features in ``counter.of``.
    """
    rows = np.arange(hashes.rows)
    elements = next((hashes.lists[name] for name in counter.of if name in hashes.lists), None)
    if elements is not None:
        rows = np.repeat(rows, elements.lengths)
    parts = [
        hashes.lists[name].values
        if name in hashes.lists
        else hashes.singles[name]
        if elements is None
        else hashes.singles[name][rows]
        for name in counter.of
    ]
    keys = mix_hashes(parts)
    if elements is None and keys.all():
        return CounterKeys(keys, rows, one_per_row=True)
    rows, keys = rows[keys != NO_KEY], keys[keys != NO_KEY]
    if elements is not None and len(keys):  # An element that a list repeats counts once.
        order = np.lexsort((keys, rows))
        rows, keys = rows[order], keys[order]
        first = np.append(True, (np.diff(rows) != 0) | (np.diff(keys) != 0))
        rows, keys = rows[first], keys[first]
    return CounterKeys(keys, rows)


def root_part(counter: Counter, schema: Schema) -> str | None:
    """Return the part of the key by which a store groups the sums: the user id, else the item id, else None."""
    for owner in ID_OWNERS:
        feature = schema.key_feature(owner)
        if feature is not None and feature.name in counter.of:
            return feature.name
    return None
