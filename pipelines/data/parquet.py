"""Parquet files of a log, read in chunks of bounded size regardless of the row group size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from pipelines.config.uri import HINT, Uri, Uris, open_uri, redact_uri
from pipelines.data.chunk_names import ChunkNames, footer_digest, row_group_sizes
from ranking.errors import LogError, single_line

CHUNK_ROWS = 16_384
"""Maximum number of rows that are decoded at once."""
CSV_HINT = "is not a Parquet file; 'ranker init' converts a CSV log and CSV tables to Parquet"
"""End of the message about a CSV file where a Parquet file is needed."""
BUFFER_BYTES = 1 << 20
"""Read-ahead buffer per column in bytes; without a buffer, Parquet holds the whole column of a row group."""


@dataclass(frozen=True)
class LogFile:
    """One file of a log.

    Attributes:
        name: path relative to the log; if the log is a single file, the file name.
        display_name: name of the file in messages.
        path: path on ``filesystem``.
        filesystem: filesystem of the file.
        keys: keys and values of its hive partition.
        source: position of its location if a log has several.
    """

    name: str
    display_name: str
    path: str
    filesystem: FileSystem = field(repr=False)
    keys: dict[str, Any]
    source: int = 0

    @property
    def folder(self) -> PurePosixPath:
        """Folder of the partition that the file belongs to."""
        return PurePosixPath(self.path).parent

    @property
    def digest(self) -> str:
        """Hash of the footer, see ``footer_digest``.

        Raises:
            LogError: the file cannot be read.
        """
        try:
            with self.open() as parquet:
                return parquet.digest
        except (OSError, pa.ArrowException) as error:
            raise self.read_error(error) from None

    def open(self) -> OpenFile:
        """Open the file and read its footer; use the result in a ``with`` statement.

        Raises:
            OSError, pyarrow.ArrowException: the file cannot be read as Parquet.
            LogError: two columns have the same name.
        """
        # Pre-buffering would keep the bytes of every row group in memory until the file is closed.
        return OpenFile(
            pq.ParquetFile(self.path, filesystem=self.filesystem, pre_buffer=False, buffer_size=BUFFER_BYTES), self
        )

    def read_error(self, error: Exception) -> LogError:
        """Return the error to raise when reading this file failed."""
        if is_csv(self.display_name):
            return LogError(f"{self.display_name}: {CSV_HINT}")
        return LogError(f"{self.display_name}: cannot be read ({single_line(error)}); restore the file or move it away")


def is_csv(name: str) -> bool:
    """Return whether the name of a file says that it contains CSV, which may be compressed."""
    return re.search(r"\.(csv|tsv|txt)(\.(?!parquet$)\w+)?$", name.lower()) is not None


class OpenFile:
    """An open Parquet file.

    Args:
        parquet: the open file.
        file: its location.
    """

    def __init__(self, parquet: pq.ParquetFile, file: LogFile) -> None:
        self._parquet = parquet
        self._file = file
        self.schema: pa.Schema = parquet.schema_arrow
        check_unique_names(self.schema.names, file.display_name)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._parquet.close()

    @property
    def row_group_sizes(self) -> list[int]:
        """Number of rows of each row group."""
        return row_group_sizes(self._parquet)

    @cached_property
    def digest(self) -> str:
        """Hash of the footer, see ``footer_digest``."""
        return footer_digest(self._parquet)

    @cached_property
    def chunk_names(self) -> ChunkNames:
        """Names of the chunks."""
        return ChunkNames.of(self._parquet, self.digest)

    def row_groups_matching(self, rows: pc.Expression | None) -> list[int]:
        """Return the row groups that may contain rows matching a filter, according to the footer's statistics."""
        if rows is None:
            return list(range(self._parquet.metadata.num_row_groups))
        fragment = ds.ParquetFileFormat().make_fragment(self._file.path, self._file.filesystem)
        return [group.id for group in fragment.subset(filter=rows).row_groups]

    def chunks(
        self, group: int, columns: Collection[str] | None, stop: int | None, *, threads: bool
    ) -> Iterator[pa.Table]:
        """Yield the rows of a row group in tables of ``CHUNK_ROWS`` rows; the last table may be smaller.

        Args:
            group: index of the row group.
            columns: columns to read, partition keys included; None for all.
            stop: row of the row group to stop at; None to read all rows.
            threads: whether columns are decoded in parallel.

        Raises:
            LogError: the row group has fewer rows than the footer says.
            OSError, pyarrow.ArrowException: the file cannot be read.
        """
        expected = self._parquet.metadata.row_group(group).num_rows
        stored = [c for c in self.schema.names if columns is None or c in columns]
        pending, read = pa.Table.from_batches([], pa.schema([self.schema.field(c) for c in stored])), 0
        for batch in self._parquet.iter_batches(CHUNK_ROWS, [group], stored, use_threads=threads):
            pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
            while pending.num_rows >= CHUNK_ROWS:
                yield self._with_keys(pending.slice(0, CHUNK_ROWS), columns)
                pending, read = pending.slice(CHUNK_ROWS), read + CHUNK_ROWS
                if stop is not None and read >= stop:
                    return
        if pending.num_rows:
            yield self._with_keys(pending, columns)
        if read + pending.num_rows != expected:
            raise LogError(
                f"{self._file.display_name}: row group {group} has {read + pending.num_rows:,} rows, "
                f"but its footer says {expected:,}; restore the file or move it away"
            )

    def _with_keys(self, table: pa.Table, columns: Collection[str] | None) -> pa.Table:
        for key, value in self._file.keys.items():
            if key not in self.schema.names and (columns is None or key in columns):
                table = table.append_column(key, pa.repeat(value, table.num_rows))
        return table


def check_unique_names(names: Sequence[str], file: str) -> None:
    """Check that no two columns have the same name, because Arrow reads such tables only in part.

    Raises:
        LogError: names the file and the column.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise LogError(f"{file}: {count} columns have the name '{name}': rename or remove all but one")


def find_log_files(where: Uris) -> list[LogFile]:
    """Return the files of a log in the order of its locations and paths; names start with the number of the location.

    A location among several may be a folder without files, such as that of a joined log before the first window closes.

    Raises:
        LogError: a location has no log, cannot be reached, or is inside another one.
    """
    if not isinstance(where, tuple):
        return find_files(where)
    files: dict[str, LogFile] = {}
    for source, location in enumerate(where):
        for file in find_files(location, allow_empty=len(where) > 1):
            if file.display_name in files:
                raise LogError(f"{redact_uri(location)}: is read twice; name separate locations in logs.path")
            files[file.display_name] = replace(file, name=f"{source}/{file.name}", source=source)
    if not files:
        raise LogError(f"{redact_uri(where)}: contain no Parquet file; name a folder that does")
    return list(files.values())


def find_files(where: Uri, *, allow_empty: bool = False) -> list[LogFile]:
    """Return the files at one location, sorted by path.

    As in Spark, paths that start with "." or "_" and empty marker files are ignored. An empty *.parquet file is not
    ignored, because it is a damaged file.

    Raises:
        LogError: there is no log at the location, or it cannot be reached.
    """
    filesystem, root, kind = open_uri(where)
    if kind == FileType.NotFound:
        raise LogError(f"{redact_uri(where)}: no such log; name a Parquet file or a folder of Parquet files")
    if kind == FileType.File:
        return [LogFile(PurePosixPath(root).name, redact_uri(where), root, filesystem, {})]
    root = root.rstrip("/")
    try:
        infos = filesystem.get_file_info(FileSelector(root, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{redact_uri(where)}: cannot be listed ({single_line(error)}); {HINT}") from None
    paths = sorted(info.path for info in infos if _is_data(info, root))
    if not paths and allow_empty:
        return []
    if not paths:
        raise LogError(f"{redact_uri(where)}: contains no Parquet file; name a folder that does")
    files = []
    for path, keys in zip(paths, _partition_keys(filesystem, root, paths), strict=True):
        name = path[len(root) + 1 :]
        files.append(LogFile(name, f"{redact_uri(where)}/{name}", path, filesystem, keys))
    return files


def _is_data(info: FileInfo, root: str) -> bool:
    parts = PurePosixPath(info.path[len(root) + 1 :]).parts
    hidden = any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)
    return info.type == FileType.File and not hidden and (info.size != 0 or info.path.endswith(".parquet"))


def _partition_keys(filesystem: FileSystem, root: str, paths: list[str]) -> list[dict[str, Any]]:
    """Return the hive keys (KEY=VALUE folders) of each path; a key with only integer values is an integer."""
    options = ds.FileSystemFactoryOptions(partition_base_dir=root)
    options.partitioning_factory = ds.HivePartitioning.discover()
    factory = ds.FileSystemDatasetFactory(filesystem, paths, ds.ParquetFileFormat(), options)
    dataset = factory.finish(factory.inspect(fragments=0))
    keys = {f.path: ds.get_partition_keys(f.partition_expression) for f in dataset.get_fragments()}
    return [keys[path] for path in paths]
