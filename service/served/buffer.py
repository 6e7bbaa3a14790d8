"""Tables of answered requests that wait for the next file, and their conversion to Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.served.arrays import cast, common_type
from service.served.columns import ServedColumns
from service.served.record import ServedRequest

FORMAT = 1
"""Version of the format of the files."""
METADATA_KEY = b"ranker.served"
"""Key of the file's metadata that holds JSON about the model."""
ROW_GROUP_BYTES = 4 * 1024 * 1024
"""Approximate size of a row group in memory; between two of them, the thread leaves the processor to others."""
COMPRESSION = "lz4"


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

    def encode(self, pause: Callable[[], None]) -> pa.Buffer:
        """Return the content of a Parquet file with all requests; ``pause`` is called between row groups."""
        tables = _with_one_schema(self._tables)
        schema = tables[0].schema
        metadata = {METADATA_KEY: json.dumps(self._metadata(schema)).encode()}
        sink = pa.BufferOutputStream()
        floats = [field.name for field in schema if field.name.startswith("score")]
        dictionary = [name for name in _leaves(schema) if name.split(".list.")[0] not in floats]
        with pq.ParquetWriter(
            sink,
            schema.with_metadata(metadata),
            compression=COMPRESSION,
            use_dictionary=dictionary,
            write_statistics=False,
        ) as writer:
            table = pa.concat_tables(tables)
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
            "columns": [
                {
                    "name": column.name,
                    "owner": column.owner,
                    "kind": column.feature.kind,
                    "type": str(_value_type(schema.field(column.label).type, column.owner)),
                    "computed": column.is_computed,
                }
                for column in columns.features
            ],
        }


def _value_type(dtype: pa.DataType, owner: str) -> pa.DataType:
    """Return the type of one value of a column."""
    return dtype.value_type if owner == "item" else dtype


def _with_one_schema(tables: list[pa.Table]) -> list[pa.Table]:
    """Return the tables with the same columns and types; columns that a table lacks are null."""
    fields: dict[str, list[pa.DataType]] = {}
    for table in tables:
        for field in table.schema:
            fields.setdefault(field.name, []).append(field.type)
    types = {name: common_type(types) for name, types in fields.items()}
    schema = pa.schema(list(types.items()))
    return [
        table
        if table.schema == schema
        else pa.table(
            [
                cast(table[name].combine_chunks(), dtype)
                if name in table.column_names
                else pa.nulls(table.num_rows, dtype)
                for name, dtype in types.items()
            ],
            schema=schema,
        )
        for table in tables
    ]


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of the columns of a schema."""
    paths = []
    for field in schema:
        path, dtype = field.name, field.type
        while pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
            path, dtype = f"{path}.list.element", dtype.value_type
        paths.append(path)
    return paths
