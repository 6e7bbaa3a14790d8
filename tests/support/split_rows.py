"""Completed rows of one split of a run's log, with the columns of counters and histories."""

from __future__ import annotations

import pyarrow as pa

from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.runs.run import RunFolder


def split_rows(run: RunFolder, split: str) -> pa.Table:
    """Return the usable rows of a split as the run's encoder reads them."""
    config = run.load_config()
    schema = config.serving_schema
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    with joined_columns(reader, schema, run.features if schema.counter_features else None) as joined:
        chunks = reader.with_joined(joined).scan(split_range(config.logs, split))
        return pa.concat_tables([chunk.rows for chunk in chunks])
