"""Converts requests to the content of a file of the served log."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from ranking.served_log.schema import METADATA_KEY, ServedDescription, source_column

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""Approximate size of a row group in memory; between two of them, the writer leaves the processor to others."""
COMPRESSION = "lz4"
"""Compression of the files; Zstandard takes 20 % less space for scores, and half as much time again."""
REPEATED_COLUMNS = [
    "tasks.list.element",
    source_column("user"),
    source_column("context"),
    f"{source_column('item')}.list.element",
]
"""Columns with few distinct values, which a dictionary makes smaller; for all others it costs time and saves little."""


def encode_served(
    table: pa.Table, description: ServedDescription, pause: Callable[[], None] = lambda: None
) -> pa.Buffer:
    """Return the content of a Parquet file.

    Args:
        table: one row per request, with lists of its candidates.
        description: description of the file.
        pause: called between row groups.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema.with_metadata({METADATA_KEY: description.to_json()}),
        compression=COMPRESSION,
        use_dictionary=REPEATED_COLUMNS,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        rows = max(1, ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1))
        for start in range(0, table.num_rows, rows):
            writer.write_table(table.slice(start, rows), row_group_size=rows)
            pause()
    return sink.getvalue()
