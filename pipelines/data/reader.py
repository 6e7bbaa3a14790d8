"""Streaming reader of a log: checks, cleans and completes its rows chunk by chunk in bounded memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, repeat
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileType
from pydantic_core import to_json

from pipelines.config.config import LogsConfig
from pipelines.config.uri import Uri, Uris, open_uri, redact_uri
from pipelines.data.dated_table import feature_table
from pipelines.data.dedup import DuplicateFilter, Hashes, hash_rows
from pipelines.data.index import Chunk, IndexedChunk
from pipelines.data.joined import JoinedColumns, JoinedFile
from pipelines.data.log_schema import ColumnChecker, bad_row_reasons, required_columns
from pipelines.data.parquet import CSV_HINT, LogFile, OpenFile, find_files, find_log_files, is_csv
from pipelines.data.replaced_rows import ReplacedRows
from pipelines.data.splits import ALL_TIME, TimeRange, split_range
from pipelines.data.user_share import in_share
from ranking.encoding.columns import holds_integers
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.errors import InvalidInputError, LogError, single_line
from ranking.schema import Owner, Schema

FOOTER_READERS = 16
"""Number of threads that read footers of files."""


@dataclass(frozen=True)
class ScannedChunk:
    """Result of scanning one chunk of a log.

    Attributes:
        rows: usable rows, completed with the side tables.
        bad: unusable rows: ``file``, position in the file (``file_row``), ``reason``, and the ``row`` as JSON text.
        file: name of the file in messages.
        chunk: position of the chunk in the log.
        excluded: positions in the chunk of bad and dropped rows, ascending.
        positions: positions of ``rows`` in the file [rows] int64.
        duplicates: number of exact duplicates that were dropped.
        replaced: number of rows that were dropped because a later location has the same request and item.
        name: name of the chunk, which remains when rows are removed, see ``ChunkNames``.
    """

    rows: pa.Table
    bad: pa.Table
    file: str
    chunk: Chunk
    excluded: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    duplicates: int = 0
    replaced: int = 0
    name: str = ""


def load_tables(logs: LogsConfig, schema: Schema) -> dict[Owner, FeatureTable]:
    """Load the side tables of users and items that the configuration names.

    Raises:
        LogError: a file cannot be read, has no id column, or contains an id twice (with a column ``valid_from``: an id
            and time).
    """
    tables: dict[Owner, FeatureTable] = {}
    locations: tuple[tuple[Owner, Uri | None], ...] = (("user", logs.users), ("item", logs.items))
    for owner, where in locations:
        if where is None:
            continue
        filesystem, path, kind = open_uri(where)
        if kind == FileType.NotFound:
            raise LogError(f"{redact_uri(where)}: does not exist; correct or remove logs.{owner}s")
        try:
            for file in find_files(where):
                file.open().close()  # checks the names of its columns
            table = pq.read_table(path, filesystem=filesystem)
            with as_log_error(redact_uri(where)):
                tables[owner] = feature_table(table, schema, owner)
                fill_features(table.slice(0, 1), schema, {})  # checks the types
        except (OSError, pa.ArrowException) as error:
            reason = CSV_HINT if is_csv(redact_uri(where)) else f"cannot be read as Parquet ({single_line(error)})"
            raise LogError(f"{redact_uri(where)}: {reason}") from None
    return tables


def open_log(logs: LogsConfig, schema: Schema) -> LogReader:
    """Open the log and the side tables of a configuration.

    Raises:
        LogError: as for ``LogReader`` and ``load_tables``.
    """
    return LogReader(logs.path, schema, load_tables(logs, schema), until=logs.test_until)


class LogReader:
    """Reader of one log.

    Args:
        path: Parquet file or folder, local or on another filesystem; or several of them, of which later ones replace
            rows of earlier ones.
        schema: columns that every file must have.
        tables: side tables that complete the rows.
        labels: whether labels, masks and weights are read too; scoring does not need them.
        until: exclusive end of the log: later rows are not read. None: the log is read to its end.

    Attributes:
        schema: columns that every file must have.
        until: exclusive end of the log.
        joined: computed columns that the reader adds to the rows; None if there are none.

    Raises:
        LogError: there is no log at the path, or it cannot be reached.
    """

    def __init__(
        self,
        path: Uris,
        schema: Schema,
        tables: dict[Owner, FeatureTable],
        *,
        labels: bool = True,
        until: datetime | None = None,
    ) -> None:
        self.schema = schema
        self.until = until
        self._tables = tables
        self._labels = labels
        self._files = {file.name: file for file in find_log_files(path)}
        self.joined: JoinedColumns | None = None
        self._replaced = ReplacedRows(list(self._files.values()), schema)  # copies of the reader share what it finds

    @property
    def files(self) -> list[LogFile]:
        """Files of the log, in the order in which ``scan`` reads them."""
        return [file for partition in self.partitions() for file in partition]

    def scan(
        self,
        time_range: TimeRange = ALL_TIME,
        *,
        users: float = 1.0,
        drop_duplicates: bool = True,
        earlier: Hashes | None = None,
    ) -> Iterator[ScannedChunk]:
        """Read, check and complete the rows of a time range in the order of the files.

        A row without a time is in no range. Every scan reports it as a bad row.

        Args:
            time_range: the rows to read.
            users: share of the users whose rows are read, see ``in_share``.
            drop_duplicates: whether exact duplicates within a partition are dropped. Rows that a later location
                replaces always are.
            earlier: hashes of rows that occur before these files, in files of the same folder; see ``row_hashes``.

        Raises:
            LogError: a file cannot be read, or a column is missing or has the wrong type; names the file.
        """
        columns, time_range = self._column_checker(), time_range.before(self.until)
        for partition in self.partitions():
            seen = DuplicateFilter()  # exact duplicates have the same time and are therefore in the same partition
            if earlier is not None:
                seen.add(earlier)
            for file in partition:
                for chunk, table, joined, first_row, name in self._read(file, columns, time_range):
                    selected = self._select(table, time_range, users)
                    candidates = take_rows(table, selected)
                    superseded = self._replaced.find(file, candidates)
                    new = np.ones(len(selected), np.bool_)
                    if drop_duplicates:
                        new = seen.first_seen(candidates)
                    kept = new & ~superseded
                    rows, dropped = selected[kept], selected[~kept]
                    table = _join(take_rows(table, rows), None if joined is None else take_rows(joined, rows))
                    scanned = self._clean(table, rows, dropped, chunk, first_row, file.display_name)
                    duplicates = int(np.count_nonzero(~new))
                    replaced = len(dropped) - duplicates
                    yield replace(scanned, duplicates=duplicates, replaced=replaced, name=name)

    def check_files(self) -> dict[str, str]:
        """Check the columns of all files, which ``scan`` checks when it reads them; reads only their footers.

        Returns:
            Digest of each file by name.

        Raises:
            LogError: as for ``scan``.
        """

        def read(file: LogFile) -> tuple[pa.Schema, str]:
            try:
                with file.open() as parquet:
                    return parquet.schema, parquet.digest
            except (OSError, pa.ArrowException) as error:
                raise file.read_error(error) from None

        checker, digests = self._column_checker(), {}
        with ThreadPoolExecutor(FOOTER_READERS) as pool:  # on object storage, each footer takes a round trip
            for file, (schema, digest) in zip(self._files.values(), pool.map(read, self._files.values()), strict=True):
                checker.check(file, schema)  # in the order of the log: each file is compared with the first
                digests[file.name] = digest
        return digests

    def row_hashes(self, time_range: TimeRange = ALL_TIME, *, users: float = 1.0) -> Hashes:
        """Return the hashes of the rows that ``scan`` compares to find duplicates [rows].

        Raises:
            LogError: as for ``scan``.
        """
        checker, time_range = self._column_checker(), time_range.before(self.until)
        hashes = [np.empty(0, np.uint64)]
        for file in self._files.values():
            for _, table, *_ in self._read(file, checker, time_range, joined=False):
                hashes.append(hash_rows(take_rows(table, self._select(table, time_range, users))))
        return np.concatenate(hashes)

    def with_schema(self, schema: Schema) -> LogReader:
        """Return a reader of the same files that checks rows against another schema."""
        reader = copy(self)
        reader.schema = schema
        return reader

    def with_file(self, name: str) -> LogReader:
        """Return a reader of one of the files, by its name in ``files``.

        Raises:
            LogError: the log has no such file.
        """
        if name not in self._files:
            raise LogError(f"{name}: was removed after the log was listed; restore it")
        reader = copy(self)
        reader._files = {name: self._files[name]}
        return reader

    def with_joined(self, joined: JoinedColumns | None) -> LogReader:
        """Return a reader of the same files that adds computed columns to the rows."""
        reader = copy(self)
        reader.joined = joined
        return reader

    def read_columns(self, columns: Collection[str], time_range: TimeRange) -> Iterator[tuple[str, pa.Table]]:
        """Read some columns of the rows of a time range, which are neither checked nor completed.

        Yields the name of the file in messages and a table of its rows.

        Raises:
            LogError: as for ``scan``.
        """
        checker, time_range = self._column_checker(), time_range.before(self.until)
        for file in self._files.values():
            for _, table, *_ in self._read(file, checker, time_range, columns):
                with as_log_error(file.display_name):
                    rows = time_range.select(table, self.schema.columns.time)
                yield file.display_name, rows

    def read_indexed(self, entries: Sequence[IndexedChunk], split: str, logs: LogsConfig) -> Iterator[pa.Table]:
        """Read the usable rows of a split from chunks of one file; yields one table per chunk.

        Only the columns of the schema are read. Rows are not checked again, but the file must be unchanged.

        Args:
            entries: index entries of one file, in its order.
            split: name of the split.
            logs: time bounds of the splits.

        Raises:
            LogError: the file cannot be read, or it changed after the log was indexed.
        """
        chunk = entries[0].chunk
        file = self._files.get(chunk.file)
        if file is None:
            raise LogError(f"{chunk.file}: was removed after the log was indexed; restore it, or train again")
        columns = list(required_columns(self.schema.logged, labels=True))
        try:
            with file.open() as parquet:
                if parquet.digest != chunk.digest:
                    raise _changed(file.display_name)
                with self._open_joined(file, parquet) as joined:
                    for group, group_entries in groupby(entries, key=lambda entry: entry.chunk.group):
                        by_start = {entry.chunk.start: entry for entry in group_entries}
                        start, stop = 0, max(by_start) + 1
                        chunks = parquet.chunks(group, columns, stop, threads=False)
                        for table, counter_features in zip(
                            chunks, self._joined_chunks(joined, group, stop, threads=False), strict=False
                        ):
                            if start in by_start:
                                joined_table = _join(table, counter_features)
                                yield self._select_split(joined_table, by_start[start], split, logs, file.display_name)
                            start += table.num_rows
        except FileNotFoundError:
            raise LogError(
                f"{file.display_name}: was removed after the log was indexed; restore it, or train again"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _select_split(self, table: pa.Table, entry: IndexedChunk, split: str, logs: LogsConfig, file: str) -> pa.Table:
        """Return the usable rows of a split in a chunk, completed with the side tables."""
        table = take_rows(table, np.delete(np.arange(table.num_rows), entry.excluded))
        if entry.rows_by_split[split] < table.num_rows:
            table = split_range(logs, split).select(table, self.schema.columns.time)
        if table.num_rows != entry.rows_by_split[split]:
            raise _changed(file)
        with as_log_error(file):
            return fill_features(table, self.schema, self._tables)

    def _column_checker(self) -> ColumnChecker:
        side_columns = {owner: table.table.column_names for owner, table in self._tables.items()}
        files = list(self._files.values())
        schema = self.schema.logged
        return ColumnChecker(schema, labels=self._labels, side_columns=side_columns, files=files)

    def partitions(self) -> list[list[LogFile]]:
        """Return the files grouped by folder, in the order in which ``scan`` reads them."""
        folders: dict[tuple[int, PurePosixPath], list[LogFile]] = {}
        for file in self._files.values():
            folders.setdefault((file.source, file.folder), []).append(file)
        return list(folders.values())

    def _read(
        self,
        file: LogFile,
        checker: ColumnChecker,
        time_range: TimeRange,
        columns: Collection[str] | None = None,
        *,
        joined: bool = True,
    ) -> Iterator[tuple[Chunk, pa.Table, pa.Table | None, int, str]]:
        """Yield the chunks of a file; skip row groups outside the time range.

        Yields the chunk, its rows, their computed columns (none if only some ``columns`` are read, or ``joined`` is
        false), the position of the first row, and the name of the chunk.
        """
        try:
            with file.open() as parquet:
                checker.check(file, parquet.schema)
                if self._labels:
                    self._check_ids(file.display_name, parquet.schema)
                rows = None
                if time_range.bounded:
                    time = self.schema.columns.time
                    with as_log_error(file.display_name):
                        rows = time_range.expression(time, parquet.schema.field(time).type)
                digest, sizes = parquet.digest, parquet.row_group_sizes
                with self._open_joined(file, parquet, needed=joined and columns is None) as computed:
                    for group in parquet.row_groups_matching(rows):
                        start = 0
                        chunks = parquet.chunks(group, columns, None, threads=True)
                        for table, counter_features in zip(
                            chunks, self._joined_chunks(computed, group, None, threads=True), strict=False
                        ):
                            chunk = Chunk(file.name, digest, group, start, table.num_rows)
                            yield (
                                chunk,
                                table,
                                counter_features,
                                sum(sizes[:group]) + start,
                                parquet.chunk_names.name(group, start),
                            )
                            start += table.num_rows
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _open_joined(
        self, file: LogFile, parquet: OpenFile, *, needed: bool = True
    ) -> AbstractContextManager[JoinedFile | None]:
        """Open the computed columns of a file; None if the rows have none.

        Raises:
            LogError: the file changed after the columns were computed, or they cannot be read.
            ValueError: the schema has computed columns, but the reader was given none.
        """
        if not needed or not self._labels or not self.schema.counter_features:
            return nullcontext()
        if self.joined is None:
            raise ValueError("the schema has counters or histories: compute their columns first")
        return self.joined.open(file, parquet)

    def _joined_chunks(
        self, joined: JoinedFile | None, group: int, stop: int | None, *, threads: bool
    ) -> Iterator[pa.Table | None]:
        """Yield the computed columns of each chunk of a row group."""
        if joined is None:
            return repeat(None)
        columns = {feature.column for feature in self.schema.inputs} & self.schema.counter_columns
        return joined.chunks(group, columns, stop, threads=threads)

    def _check_ids(self, file: str, stored: pa.Schema) -> None:
        """Check that integer ids of a file can occur in the side tables, so that not all lookups fail.

        Raises:
            LogError: the ids of a side table are text that never is the decimal text of an integer.
        """
        for owner, table in self._tables.items():
            name = str(self.schema.id_column(owner))
            if name not in stored.names or not pa.types.is_integer(stored.field(name).type):
                continue
            if len(table) and not holds_integers(table.ids):
                text = f"the {owner}s table has text such as {table.ids[0].as_py()!r:.40}"
                raise LogError(f"{file}: column '{name}' holds integers, but {text}: write the same ids in both")

    def _select(self, table: pa.Table, time_range: TimeRange, users: float) -> npt.NDArray[np.int64]:
        """Return the positions of the rows of a share of the users in a time range, and of those without a time."""
        selected = self._positions_in_range(table, time_range)
        if users < 1:
            selected = selected[in_share(table[self.schema.columns.user].take(selected), users)]
        return selected

    def _positions_in_range(self, table: pa.Table, time_range: TimeRange) -> npt.NDArray[np.int64]:
        """Return the positions of the rows in a time range and of those without a time."""
        if not time_range.bounded:
            return np.arange(table.num_rows)
        time = self.schema.columns.time
        return time_range.positions(table[time], time, nulls=True)

    def _clean(
        self,
        table: pa.Table,
        selected: npt.NDArray[np.int64],
        dropped: npt.NDArray[np.int64],
        chunk: Chunk,
        first_row: int,
        file: str,
    ) -> ScannedChunk:
        """Separate the usable from the bad rows among the selected rows of a chunk."""
        with as_log_error(file):
            completed = fill_features(table, self.schema, self._tables)
            reasons = bad_row_reasons(completed, self.schema, labels=self._labels)
        good = reasons.is_null()
        bad = pc.invert(good)
        bad_positions = selected[bad.to_numpy(zero_copy_only=False)]
        logged = table.drop_columns([c for c in self.schema.counter_columns if c in table.column_names])
        rows = [_to_json(row) for row in logged.filter(bad).to_pylist()]
        bad_rows = pa.table(
            {
                "file": pa.array([file] * len(rows), pa.string()),
                "file_row": pa.array(first_row + bad_positions, pa.int64()),
                "reason": reasons.drop_null(),
                "row": pa.array(rows, pa.string()),
            }
        )
        excluded = np.sort(np.concatenate([bad_positions, dropped])).astype(np.int32)
        positions = first_row + selected[good.to_numpy(zero_copy_only=False)]
        return ScannedChunk(completed.filter(good), bad_rows, file, chunk, excluded, positions)


def take_rows(table: pa.Table, positions: npt.NDArray[np.int64]) -> pa.Table:
    """Return the rows at ascending positions, without a copy if these are all rows."""
    return table if len(positions) == table.num_rows else table.take(positions)


def _join(table: pa.Table, joined: pa.Table | None) -> pa.Table:
    """Return the table with computed columns, which replace columns of the same names."""
    if joined is None:
        return table
    table = table.drop_columns([name for name in joined.column_names if name in table.column_names])
    for name in joined.column_names:
        table = table.append_column(name, joined[name])
    return table


def _to_json(row: dict[str, Any]) -> str:
    """Return a row as JSON; bytes become Base64, and what JSON cannot express becomes text."""
    return to_json(row, bytes_mode="base64", inf_nan_mode="strings", fallback=str).decode()


def _changed(file: str) -> LogError:
    return LogError(f"{file}: changed after the log was indexed; restore it, or train again")


@contextmanager
def as_log_error(file: str) -> Iterator[None]:
    """Convert an error about a column to one that also names the file.

    Raises:
        LogError: instead of ``InvalidInputError``.
    """
    try:
        yield
    except InvalidInputError as error:
        raise LogError(f"{file}: column {error}") from None
