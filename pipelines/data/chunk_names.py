"""Names of the chunks of a file, which remain when ``ranker forget`` removes rows from it.

``ranker counters`` records the names of the chunks that are applied. So no row of a changed file is applied twice or
left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

KEY = b"ranker.chunks"
"""Key in the metadata of a changed file."""


def footer_digest(parquet: pq.ParquetFile) -> str:
    """Return a hash of the footer of a file, which contains the positions, sizes and statistics of all columns."""
    footer = pa.BufferOutputStream()
    parquet.metadata.write_metadata_file(footer)
    return hashlib.blake2b(footer.getvalue(), digest_size=8).hexdigest()


def row_group_sizes(parquet: pq.ParquetFile) -> list[int]:
    """Return the number of rows of each row group."""
    return [parquet.metadata.row_group(group).num_rows for group in range(parquet.metadata.num_row_groups)]


@dataclass(frozen=True)
class ChunkNames:
    """Names of the chunks of a file.

    Attributes:
        digest: digest of the file as it was written.
        starts: row group and row at which the chunk of each row group started in that file; None if this is that file.
    """

    digest: str
    starts: Sequence[tuple[int, int]] | None = None

    @classmethod
    def of(cls, parquet: pq.ParquetFile, digest: str) -> Self:
        """Read the names of the chunks of a file.

        Arrow copies metadata to files that are made of a changed one. They have other row groups, and names of their
        own.

        Args:
            parquet: the file.
            digest: its digest.
        """
        text = (parquet.schema_arrow.metadata or {}).get(KEY)
        if text is not None:
            stored = json.loads(text)
            if stored["rows"] == row_group_sizes(parquet):
                return cls(stored["digest"], [(group, start) for group, start in stored["starts"]])
        return cls(digest)

    def name(self, group: int, start: int) -> str:
        """Return the name of the chunk that starts at a row of a row group."""
        if self.starts is not None:
            group, start = self.starts[group]
        return f"{self.digest}:{group}:{start}"

    def metadata(self, rows: Sequence[int]) -> dict[bytes, bytes]:
        """Return the metadata of a changed file: a row group per chunk, with so many rows."""
        return {KEY: json.dumps({"digest": self.digest, "starts": self.starts, "rows": rows}).encode()}
