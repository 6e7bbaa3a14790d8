"""Computed columns of a log: one Parquet file per file of the log, with the same rows in the same order.

FOLDER/meta.json        digests of the log's files, and what the columns were computed from
FOLDER/files/NAME       columns of the log's file NAME; rows that the log's reader does not use are null
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from pipelines.data.parquet import LogFile, OpenFile
from ranking.errors import LogError, single_line

META = "meta.json"
FILES = "files"


@dataclass(frozen=True)
class JoinedColumns:
    """Computed columns of a log.

    Attributes:
        folder: their folder.
        digests: digest of each file of the log when they were computed.
        definition: their definition, as text to compare.
        prefix: folder of the files within the log for which the columns were computed; empty, or ending with ``/``.
    """

    folder: Path
    digests: Mapping[str, str]
    definition: str
    prefix: str = ""

    @classmethod
    def read(cls, folder: Path) -> JoinedColumns:
        """Read the description of computed columns.

        Raises:
            LogError: the folder is missing or damaged.
        """
        try:
            meta = json.loads((folder / META).read_text())
            return cls(folder, meta["digests"], meta["definition"])
        except (OSError, ValueError, LookupError) as error:
            raise LogError(f"{folder}: cannot be read ({error}); the run is damaged: train again") from None

    def write(self) -> None:
        """Write the description to the folder, after all files."""
        meta = {"digests": self.digests, "definition": self.definition}
        (self.folder / META).write_text(json.dumps(meta) + "\n")

    def file(self, name: str) -> Path:
        """Return the path of the columns of one file of the log."""
        return self.folder / FILES / (self.prefix + name)

    def matches(self, files: list[LogFile]) -> bool:
        """Return whether these are all files of the log, unchanged.

        Raises:
            LogError: a file cannot be read.
        """
        if {file.name for file in files} != set(self.digests):
            return False
        return all(self.digests[file.name] == file.digest for file in files)

    def part(self, files: list[LogFile]) -> JoinedColumns | None:
        """Return the columns of some unchanged files of the log, such as those of one of its folders.

        Returns:
            None if a file is new or has changed, or if the files occur in several folders of the log.

        Raises:
            LogError: a file cannot be read.
        """
        digests = {file.name: file.digest for file in files}
        first = min(digests)
        prefixes = [name.removesuffix(first) for name in self.digests if f"/{name}".endswith(f"/{first}")]
        parts = [
            prefix
            for prefix in prefixes
            if all(self.digests.get(prefix + name) == digest for name, digest in digests.items())
        ]
        return replace(self, digests=digests, prefix=parts[0]) if len(parts) == 1 else None

    @contextmanager
    def open(self, file: LogFile, parquet: OpenFile) -> Iterator[JoinedFile]:
        """Open the columns of one file of the log, which must be unchanged.

        Raises:
            LogError: the log's file has changed or is new, or the columns cannot be read.
        """
        if self.digests.get(file.name) != parquet.digest:
            raise LogError(
                f"{file.display_name}: changed after counters and histories were computed; restore it, or train again"
            )
        path = self.file(file.name)
        stored = LogFile(file.name, str(path), str(path), LocalFileSystem(), {})
        try:
            columns = stored.open()
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{path}: cannot be read ({single_line(error)}); the run is damaged: train again") from None
        with columns:
            yield JoinedFile(columns, parquet.row_group_sizes)


class JoinedFile:
    """Computed columns of one open file of a log.

    Args:
        parquet: the computed columns.
        sizes: rows of each row group of the log's file.
    """

    def __init__(self, parquet: OpenFile, sizes: list[int]) -> None:
        self._parquet = parquet
        self._groups = [sum(size > 0 for size in sizes[:group]) for group in range(len(sizes))]

    def chunks(self, group: int, columns: Collection[str], stop: int | None, *, threads: bool) -> Iterator[pa.Table]:
        """Yield the columns of a row group of the log's file, in chunks like those of ``OpenFile.chunks``."""
        return self._parquet.chunks(self._groups[group], columns, stop, threads=threads)
