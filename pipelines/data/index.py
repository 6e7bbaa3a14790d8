"""Which rows of a log can be used, found once by the survey, so that later passes need not look for it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.data.parquet import CHUNK_ROWS
from pipelines.data.splits import SPLITS
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import LogError, OutputError

SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("digest", pa.string()),
        ("group", pa.int32()),
        ("start", pa.int64()),
        ("rows", pa.int32()),
        *((split, pa.int32()) for split in SPLITS),
        ("left_out", pa.list_(pa.int32())),
    ]
)


@dataclass(frozen=True)
class Chunk:
    """Neighbouring rows of a row group, at most ``files.CHUNK_ROWS`` of them: what is decoded at once.

    Attributes:
        file: its path within the log.
        digest: of the file's footer when the log was surveyed.
        group: number of the row group in the file.
        start: first row in the row group.
        rows: how many.
    """

    file: str
    digest: str
    group: int
    start: int
    rows: int


@dataclass(frozen=True)
class IndexedChunk:
    """What the survey found in a chunk.

    Attributes:
        chunk: where.
        usable: split → rows that it has here.
        left_out: positions in the chunk of bad rows and exact repeats, rising.
    """

    chunk: Chunk
    rows_by_split: Mapping[str, int]
    excluded: npt.NDArray[np.int32]


class LogIndex:
    """The usable rows of a log, chunk by chunk, in order of the log.

    Args:
        entries: of every chunk that holds a row of some split.
    """

    def __init__(self, entries: list[IndexedChunk]) -> None:
        self.entries = entries

    def num_rows(self, split: str) -> int:
        """Rows of a split."""
        return sum(entry.rows_by_split[split] for entry in self.entries)

    def read_units(self, split: str) -> list[list[IndexedChunk]]:
        """The entries that hold rows of a split, those together that are best read at once.

        That is a row group, or small neighbouring ones: each time that a file is opened costs as much as many rows.
        """
        units: list[list[IndexedChunk]] = []
        rows = 0
        for entry in self.entries:
            if not entry.rows_by_split[split]:
                continue
            last = units[-1][-1].chunk if units else None
            near = last is not None and last.file == entry.chunk.file
            if near and (last.group == entry.chunk.group or rows + entry.chunk.rows <= CHUNK_ROWS):
                units[-1].append(entry)
            else:
                units.append([entry])
                rows = 0
            rows += entry.chunk.rows
        return units

    def write(self, file: Path) -> None:
        """Writes it as Parquet, a row a chunk.

        Raises:
            OutputError: the file cannot be written.
        """
        records = [{**vars(e.chunk), **e.rows_by_split, "left_out": e.excluded} for e in self.entries]
        try:
            pq.write_table(pa.Table.from_pylist(records, SCHEMA), file)
        except OSError as error:
            raise OutputError(f"{file}: cannot be written ({os_error_text(error)})") from None

    @classmethod
    def read(cls, file: Path) -> LogIndex:
        """What ``write`` wrote.

        Raises:
            LogError: the file is missing or damaged.
        """
        try:
            records = pq.read_table(file, schema=SCHEMA).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{file}: cannot be read ({error}); the run is damaged: train again") from None
        return cls(
            [
                IndexedChunk(
                    Chunk(**{key: record[key] for key in Chunk.__annotations__}),
                    {split: record[split] for split in SPLITS},
                    np.array(record["left_out"], np.int32),
                )
                for record in records
            ]
        )
