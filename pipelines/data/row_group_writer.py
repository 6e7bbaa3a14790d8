"""Writes tables to a Parquet file in row groups of equal size."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 131_072
"""Rows of a row group: fewer than the shuffle buffer of training, so that each group is decoded once per pass."""


class RowGroupWriter:
    """Collects tables until they fill a row group. The first table determines the schema and creates the file.

    As a context manager, it closes the file; after an exception without the rows that it has collected.

    Args:
        file: path of the file.
        rows: number of rows of a row group; the last one may be smaller.
        options: options of ``pyarrow.parquet.ParquetWriter``.
    """

    def __init__(self, file: Path, rows: int = ROWS, **options: Any) -> None:
        self._file, self._rows, self._options = file, rows, options
        self._pending: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        if error is not None:
            self._pending = []
        self.close()

    def write(self, table: pa.Table) -> None:
        """Add a table with the columns and types of the first one."""
        self._pending.append(table)
        if (rows := sum(part.num_rows for part in self._pending)) >= self._rows:
            self._flush(rows // self._rows * self._rows)

    def close(self) -> None:
        """Write the remaining rows and close the file, if there is one."""
        try:
            if self._pending:
                self._flush(sum(part.num_rows for part in self._pending))
        finally:
            if self._writer is not None:
                self._writer.close()

    def _flush(self, rows: int) -> None:
        """Write the first of the collected rows."""
        table = pa.concat_tables(self._pending)
        self._pending = [table.slice(rows)] if rows < table.num_rows else []
        self._writer = self._writer or pq.ParquetWriter(self._file, table.schema, **self._options)
        if rows:
            self._writer.write_table(table.slice(0, rows), self._rows)
