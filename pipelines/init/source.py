"""Tables that a configuration is written for: Parquet or CSV, read in chunks and sampled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Protocol

import pyarrow as pa
from pyarrow.fs import FileType

from pipelines.config.uri import Uri, open_uri, redact_uri
from pipelines.data.parquet import find_files
from pipelines.init.csv_source import CsvSource
from pipelines.init.parquet_source import ParquetSource
from pipelines.init.sampling import LogSample
from ranking.errors import LogError

CSV_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".data", ".dat", ".txt")
"""Suffixes of files that are read as CSV; all others are read as Parquet."""


class Source(Protocol):
    """A table that is read in chunks.

    Attributes:
        location: name of the table in messages.
        is_csv: whether the table is CSV, so that training needs a copy in Parquet.
        sample: rows from which everything is guessed.
        notes: changes of a column while reading, by column.
    """

    location: str
    is_csv: bool
    sample: LogSample
    notes: dict[str, str]

    def chunks(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the position of the first row and the rows of each chunk.

        Raises:
            LogError: the table cannot be read; names the file and the row.
        """


def open_source(where: Uri) -> Source:
    """Open a Parquet file, a folder of Parquet files or a CSV file, and sample its rows.

    Raises:
        LogError: the location does not exist, cannot be read, or has no rows.
    """
    filesystem, path, kind = open_uri(where)
    location = redact_uri(where)
    if kind == FileType.NotFound:
        raise LogError(f"{location}: no such log; name a Parquet file, a folder of Parquet files, or a CSV file")
    source: Source
    if kind == FileType.File and is_csv(path):
        source = CsvSource(filesystem, path, location)
    else:
        files = find_files(where)
        texts = [file.display_name for file in files if is_csv(file.path)]
        if texts:
            raise LogError(f"{texts[0]}: is a CSV file in a folder: name one CSV file, or a folder of Parquet files")
        source = ParquetSource(files, location)
    if not source.sample.total:
        raise LogError(f"{location}: has no rows; name a log with impressions")
    return source


def is_csv(path: str) -> bool:
    """Return whether a file is read as CSV, by its suffix."""
    return PurePosixPath(path).name.lower().endswith(CSV_SUFFIXES)
