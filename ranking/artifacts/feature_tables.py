"""Features of users and items by id, as Parquet beside a bundle's other files."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from ranking.encoding.columns import FeatureTable
from ranking.schema import Owner, Schema

OWNERS: tuple[Owner, Owner] = ("user", "item")


class LazyFeatureTables(Mapping[Owner, FeatureTable]):
    """Features by id of a bundle, read when they are first asked for: a service needs only the encoded ones.

    Args:
        folder: the bundle.
        schema: its features.

    Raises:
        OSError, ArrowException, ValueError: a file is no such table.
    """

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._keys = {owner: str(schema.id_column(owner)) for owner in OWNERS}
        self._files = {  # opened now, since the folder may be gone later
            owner: pq.ParquetFile(file) for owner in OWNERS if (file := folder / f"{owner}s.parquet").exists()
        }
        for owner, stored in self._files.items():
            if self._keys[owner] not in stored.schema_arrow.names:
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
