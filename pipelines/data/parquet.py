"""The Parquet files of a log, read a bounded number of rows at a time, however large their row groups are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from pipelines.config.uri import HINT, Uri, open_uri, redact_uri, single_line
from ranking.errors import LogError

CHUNK_ROWS = 16_384
"""Rows that are decoded at once; a row group is read in chunks of so many rows."""
BUFFER_BYTES = 1 << 20
"""Bytes that are read ahead in a column; without a buffer Parquet holds a row group's whole column."""


@dataclass(frozen=True)
class LogFile:
    """One file of a log.

    Attributes:
        name: its path within the log; of a log that is a single file, its name.
        shown: how messages call it.
        path: on ``filesystem``.
        filesystem: where it lies.
        keys: the partition's keys and their values.
    """

    name: str
    display_name: str
    path: str
    filesystem: FileSystem = field(repr=False)
    keys: dict[str, Any]

    @property
    def folder(self) -> PurePosixPath:
        """The partition that it belongs to."""
        return PurePosixPath(self.path).parent

    def open(self) -> OpenFile:
        """Reads the footer; close it, or use it in a ``with`` statement.

        Raises:
            OSError, pyarrow.ArrowException: it cannot be read as Parquet.
        """
        # Pre-buffering keeps the bytes of every row group that was read until the file is closed.
        return OpenFile(
            pq.ParquetFile(self.path, filesystem=self.filesystem, pre_buffer=False, buffer_size=BUFFER_BYTES), self
        )

    def read_error(self, error: Exception) -> LogError:
        """What to raise where reading failed."""
        return LogError(f"{self.display_name}: cannot be read ({single_line(error)}); restore the file or move it away")


class OpenFile:
    """A file whose footer was read.

    Args:
        parquet: the file.
        file: which one.
    """

    def __init__(self, parquet: pq.ParquetFile, file: LogFile) -> None:
        self._parquet = parquet
        self._file = file
        self.schema: pa.Schema = parquet.schema_arrow

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._parquet.close()

    @property
    def row_group_sizes(self) -> list[int]:
        """Rows of each row group."""
        metadata = self._parquet.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def digest(self) -> str:
        """Fingerprint of the footer, which holds positions, sizes and extremes of all columns."""
        footer = pa.BufferOutputStream()
        self._parquet.metadata.write_metadata_file(footer)
        return hashlib.blake2b(footer.getvalue(), digest_size=8).hexdigest()

    def row_groups_matching(self, rows: pc.Expression | None) -> list[int]:
        """The row groups that may hold such rows, by the footer's statistics."""
        if rows is None:
            return list(range(self._parquet.metadata.num_row_groups))
        fragment = ds.ParquetFileFormat().make_fragment(self._file.path, self._file.filesystem)
        return [group.id for group in fragment.subset(filter=rows).row_groups]

    def chunks(
        self, group: int, columns: Sequence[str] | None, stop: int | None, *, threads: bool
    ) -> Iterator[pa.Table]:
        """A row group's rows in tables of ``CHUNK_ROWS``; the last may be smaller.

        Args:
            group: its number.
            columns: what is read, the partition's keys included; None: everything.
            stop: read no further than this row of the row group.
            threads: decode columns side by side.

        Raises:
            LogError: the row group holds fewer rows than the footer says.
            OSError, pyarrow.ArrowException: it cannot be read.
        """
        whole = self._parquet.metadata.row_group(group).num_rows
        stored = [c for c in self.schema.names if columns is None or c in columns]
        held, read = pa.Table.from_batches([], pa.schema([self.schema.field(c) for c in stored])), 0
        for batch in self._parquet.iter_batches(CHUNK_ROWS, [group], stored, use_threads=threads):
            held = pa.concat_tables([held, pa.Table.from_batches([batch])])
            while held.num_rows >= CHUNK_ROWS:
                yield self._with_keys(held.slice(0, CHUNK_ROWS), columns)
                held, read = held.slice(CHUNK_ROWS), read + CHUNK_ROWS
                if stop is not None and read >= stop:
                    return
        if held.num_rows:
            yield self._with_keys(held, columns)
        if read + held.num_rows != whole:
            raise LogError(
                f"{self._file.display_name}: row group {group} holds {read + held.num_rows:,} rows, "
                f"its footer says {whole:,}; restore the file or move it away"
            )

    def _with_keys(self, table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
        for key, value in self._file.keys.items():
            if key not in self.schema.names and (columns is None or key in columns):
                table = table.append_column(key, pa.repeat(value, table.num_rows))
        return table


def find_files(where: Uri) -> list[LogFile]:
    """The files of a log in order of their paths.

    As in Spark, what starts with "." or "_" is no part of a log, nor are empty markers; an empty *.parquet is damage.

    Raises:
        LogError: nothing is there, or it cannot be reached.
    """
    filesystem, root, kind = open_uri(where)
    if kind == FileType.NotFound:
        raise LogError(f"{redact_uri(where)}: no such log; name a Parquet file or a folder of them")
    if kind == FileType.File:
        return [LogFile(PurePosixPath(root).name, redact_uri(where), root, filesystem, {})]
    root = root.rstrip("/")
    try:
        found = filesystem.get_file_info(FileSelector(root, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{redact_uri(where)}: cannot be listed ({single_line(error)}); {HINT}") from None
    paths = sorted(info.path for info in found if _is_data(info, root))
    if not paths:
        raise LogError(f"{redact_uri(where)}: holds no Parquet file; an empty log trains nothing")
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
    """Keys of each path's folders (KEY=VALUE); a key that is a whole number everywhere is one."""
    options = ds.FileSystemFactoryOptions(partition_base_dir=root)
    options.partitioning_factory = ds.HivePartitioning.discover()
    factory = ds.FileSystemDatasetFactory(filesystem, paths, ds.ParquetFileFormat(), options)
    dataset = factory.finish(factory.inspect(fragments=0))
    keys = {f.path: ds.get_partition_keys(f.partition_expression) for f in dataset.get_fragments()}
    return [keys[path] for path in paths]
