"""Index of the usable rows of a log; later passes over the log read it instead of checking the rows again."""

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
from ranking.artifacts.atomic_files import write_errors
from ranking.errors import LogError

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
    """Position of at most ``parquet.CHUNK_ROWS`` consecutive rows of a row group, which are decoded together.

    Attributes:
        file: path of the file relative to the log.
        digest: hash of the file's footer when the log was indexed.
        group: index of the row group in the file.
        start: first row in the row group.
        rows: number of rows.
    """

    file: str
    digest: str
    group: int
    start: int
    rows: int


@dataclass(frozen=True)
class IndexedChunk:
    """Index entry of a chunk.

    Attributes:
        chunk: its position.
        rows_by_split: number of usable rows per split.
        excluded: positions in the chunk of bad and dropped rows, ascending.
    """

    chunk: Chunk
    rows_by_split: Mapping[str, int]
    excluded: npt.NDArray[np.int32]


class LogIndex:
    """Usable rows of a log by chunk, in the order of the log.

    Args:
        entries: one entry for each chunk that has a row in some split.
    """

    def __init__(self, entries: list[IndexedChunk]) -> None:
        self.entries = entries

    def num_rows(self, split: str) -> int:
        """Return the number of usable rows of a split."""
        return sum(entry.rows_by_split[split] for entry in self.entries)

    def read_units(self, split: str) -> list[list[IndexedChunk]]:
        """Return the entries that have rows of a split, grouped into units that should be read together.

        A unit is a row group, or several small consecutive row groups of a file, because opening a file costs as much
        as reading many rows.
        """
        units: list[list[IndexedChunk]] = []
        rows = 0
        for entry in self.entries:
            if not entry.rows_by_split[split]:
                continue
            previous = units[-1][-1].chunk if units else None
            if (
                previous is not None
                and previous.file == entry.chunk.file
                and (previous.group == entry.chunk.group or rows + entry.chunk.rows <= CHUNK_ROWS)
            ):
                units[-1].append(entry)
            else:
                units.append([entry])
                rows = 0
            rows += entry.chunk.rows
        return units

    def write(self, file: Path) -> None:
        """Write the index as Parquet with one row per chunk.

        Raises:
            OutputError: the file cannot be written.
        """
        records = [{**vars(e.chunk), **e.rows_by_split, "left_out": e.excluded} for e in self.entries]
        with write_errors(file):
            pq.write_table(pa.Table.from_pylist(records, SCHEMA), file)

    @classmethod
    def read(cls, file: Path) -> LogIndex:
        """Read an index that ``write`` wrote.

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
