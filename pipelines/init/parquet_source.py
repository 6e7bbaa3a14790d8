"""Parquet files as a table that is sampled and read in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines.data.parquet import LogFile
from pipelines.init.sampling import BlockSample, LogSample

MAX_ROW_GROUPS = 64
"""Maximum number of row groups that are read for the sample; they are spread evenly over the log."""


class ParquetSource:
    """A Parquet file, or the Parquet files of a folder with the keys of its hive partitions.

    Args:
        files: the files.
        location: name of the log in messages.

    Raises:
        LogError: a file cannot be read; names it.
    """

    is_csv = False

    def __init__(self, files: list[LogFile], location: str) -> None:
        self.location = location
        self.notes: dict[str, str] = {}
        self._files = files
        self.sample: LogSample = self._sample()

    def chunks(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the position of the first row and the rows of each chunk."""
        first_row = 0
        for file in self._files:
            try:
                with file.open() as parquet:
                    for group in range(len(parquet.row_group_sizes)):
                        for table in parquet.chunks(group, None, None, threads=True):
                            yield first_row, table
                            first_row += table.num_rows
            except (OSError, pa.ArrowException) as error:
                raise file.read_error(error) from None

    def _sample(self) -> LogSample:
        groups: list[tuple[LogFile, int, int]] = []  # file, row group, position of its first row
        total = 0
        for file in self._files:
            try:
                with file.open() as parquet:
                    for group, rows in enumerate(parquet.row_group_sizes):
                        groups.append((file, group, total))
                        total += rows
                    empty = parquet.schema.empty_table()
            except (OSError, pa.ArrowException) as error:
                raise file.read_error(error) from None
        sample = BlockSample()
        chosen = (
            np.unique(np.linspace(0, len(groups) - 1, MAX_ROW_GROUPS).round().astype(int)).tolist() if groups else []
        )
        for index in chosen:
            file, group, first_row = groups[index]
            try:
                with file.open() as parquet:
                    for table in parquet.chunks(group, None, None, threads=True):
                        sample.add(table, first_row)
                        first_row += table.num_rows
            except (OSError, pa.ArrowException) as error:
                raise file.read_error(error) from None
        return sample.sample(total, self.location) if total else LogSample(empty, np.empty(0, np.int64), 0)
