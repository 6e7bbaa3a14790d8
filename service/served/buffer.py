"""Tables of answered requests that wait for the next file, and their conversion to Parquet."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ranking.artifacts.served_log import FORMAT, METADATA_KEY, local_zone, source_column
from service.served.arrays import cast, common_type
from service.served.columns import ServedColumns
from service.served.features import FeatureColumn
from service.served.record import ServedRequest

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""Approximate size of a row group in memory; between two of them, the thread leaves the processor to others."""
COMPRESSION = "lz4"
"""Compression of the files; Zstandard takes 20 % less space for scores, and half as much time again."""
REPEATED_COLUMNS = [
    "tasks.list.element",
    source_column("user"),
    source_column("context"),
    f"{source_column('item')}.list.element",
]
"""Columns with few distinct values, which a dictionary makes smaller; for all others it costs time and saves little."""


class VersionBuffer:
    """Requests of one model version.

    Args:
        columns: Layout of the version's tables.
        repository: Path of the repository of bundles.

    Attributes:
        requests: Number of requests.
        candidates: Number of candidates in the responses.
        bytes: Size of the tables in memory.
    """

    def __init__(self, columns: ServedColumns, repository: str) -> None:
        self._columns, self._repository = columns, repository
        self._tables: list[pa.Table] = []
        self.requests = self.candidates = self.bytes = 0

    def add(self, requests: Sequence[ServedRequest]) -> None:
        """Convert requests to a table and keep it."""
        table = self._columns.table(requests)
        self._tables.append(table)
        self.requests += len(requests)
        self.candidates += sum(len(request.result.total) for request in requests)
        self.bytes += table.nbytes

    def encode(self, pause: Callable[[], None], max_bytes: float = math.inf) -> Iterator[tuple[pa.Buffer, int]]:
        """Yield Parquet files with all requests: the content, and the number of requests.

        Args:
            pause: Called between row groups.
            max_bytes: Maximum size of the requests of a file in memory; a larger request has a file of its own.
        """
        for table in _split(pa.concat_tables(_with_one_schema(self._tables)), max_bytes):
            yield self._encode(table, pause), table.num_rows

    def _encode(self, table: pa.Table, pause: Callable[[], None]) -> pa.Buffer:
        schema = table.schema
        metadata = {METADATA_KEY: json.dumps(self._metadata(schema)).encode()}
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            schema.with_metadata(metadata),
            compression=COMPRESSION,
            use_dictionary=REPEATED_COLUMNS,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer:
            rows = max(1, ROW_GROUP_BYTES * table.num_rows // max(self.bytes, 1))
            for start in range(0, table.num_rows, rows):
                writer.write_table(table.slice(start, rows), row_group_size=rows)
                pause()
        return sink.getvalue()

    def _metadata(self, schema: pa.Schema) -> dict[str, Any]:
        columns = self._columns
        return {
            "format": FORMAT,
            "model": columns.name,
            "version": columns.version,
            "repository": self._repository,
            "hashed_users": columns.hashes_users,
            "zone": local_zone(),
            "columns": [
                {
                    "name": column.name,
                    "owner": column.owner,
                    "kind": column.feature.kind,
                    "type": _value_type(schema, column),
                    "computed": column.is_computed,
                }
                for column in columns.features
            ],
        }


def _value_type(schema: pa.Schema, column: FeatureColumn) -> str:
    """Return the type of one value of a column; "null" if the file has none."""
    if column.label not in schema.names:
        return "null"
    dtype = schema.field(column.label).type
    return str(dtype.value_type if column.owner == "item" else dtype)


def _split(table: pa.Table, max_bytes: float) -> Iterator[pa.Table]:
    """Split a table by rows into tables of at most ``max_bytes`` bytes, or one row."""
    if table.num_rows <= 1 or max_bytes == math.inf or table.nbytes <= max_bytes:
        yield table
        return
    middle = table.num_rows // 2
    yield from _split(table.slice(0, middle), max_bytes)
    yield from _split(table.slice(middle), max_bytes)


def _with_one_schema(tables: list[pa.Table]) -> list[pa.Table]:
    """Return the tables with the same columns and types; values that a table lacks are null."""
    fields: dict[str, list[pa.DataType]] = {}
    for table in tables:
        for field in table.schema:
            fields.setdefault(field.name, []).append(field.type)
    types = {name: common_type(types) for name, types in fields.items()}
    schema = pa.schema(list(types.items()))
    return [table if table.schema == schema else _with_schema(table, schema) for table in tables]


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(cast(table[field.name].combine_chunks(), field.type))
        elif field.name.startswith("item."):
            items = table["item_id"].combine_chunks()
            columns.append(pa.ListArray.from_arrays(items.offsets, pa.nulls(len(items.values), field.type.value_type)))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)
