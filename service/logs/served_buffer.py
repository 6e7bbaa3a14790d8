"""Tables of answered requests that wait for the next file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ranking.served_log.schema import ServedColumn, ServedDescription, local_zone
from ranking.served_log.writer import encode_served
from service.logs.served_arrays import cast, common_type
from service.logs.served_columns import ServedColumns
from service.logs.served_features import FeatureColumn
from service.logs.served_request import ServedRequest


class VersionBuffer:
    """Requests of one model version.

    Args:
        columns: layout of the version's tables.
        repository: path of the repository of bundles.

    Attributes:
        requests: number of requests.
        candidates: number of candidates in the responses.
        bytes: size of the tables in memory.
    """

    def __init__(self, columns: ServedColumns, repository: Path) -> None:
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
            pause: called between row groups.
            max_bytes: maximum size of the requests of a file in memory; a larger request has a file of its own.
        """
        for table in _split(pa.concat_tables(_with_one_schema(self._tables)), max_bytes):
            yield encode_served(table, self._describe(table.schema), pause), table.num_rows

    def _describe(self, schema: pa.Schema) -> ServedDescription:
        columns = self._columns
        return ServedDescription(
            columns.name,
            columns.version,
            self._repository,
            columns.hashes_users,
            local_zone(),
            tuple(
                ServedColumn(
                    column.name, column.owner, column.feature.kind, _value_type(schema, column), column.is_computed
                )
                for column in columns.features
            ),
        )


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
