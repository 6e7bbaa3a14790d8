"""Streams a log from Parquet: cleaned, completed with the side tables, split by time. Never all of it in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic_core import to_json

from pipelines.config.config import LogsConfig
from pipelines.config.uri import Uri, open_uri, redact_uri, single_line
from pipelines.data.dedup import DuplicateFilter
from pipelines.data.index import Chunk, IndexedChunk
from pipelines.data.labels import mark_labels
from pipelines.data.log_schema import ColumnCheck, required_columns
from pipelines.data.parquet import LogFile, find_files
from pipelines.data.splits import range_overlaps, rows_in_range, split_range
from ranking.encoding.columns import invalid_rows, add_reason
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.errors import InvalidInputError, LogError
from ranking.schema import Owner, Schema


@dataclass(frozen=True)
class ScannedChunk:
    """What became of one chunk of a log.

    Attributes:
        rows: completed rows that can be used.
        bad: rows that cannot: ``file``, position in it (``file_row``), ``reason``, and the ``row`` as JSON text.
        duplicates: exact repeats that were left out.
        file: where the chunk came from.
        chunk: which one it is.
        left_out: positions in the chunk of the bad rows and the exact repeats, rising.
        positions: of ``rows`` in the file [rows] int64.
    """

    rows: pa.Table
    bad: pa.Table
    duplicates: int
    file: str
    chunk: Chunk
    excluded: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]


def load_tables(logs: LogsConfig, schema: Schema) -> dict[Owner, FeatureTable]:
    """The side tables of users and items that the configuration names.

    Raises:
        LogError: a file that cannot be read, lacks its id column or names an id twice.
    """
    tables: dict[Owner, FeatureTable] = {}
    sides: tuple[tuple[Owner, Uri | None], ...] = (("user", logs.users), ("item", logs.items))
    for owner, where in sides:
        if where is None:
            continue
        key = str(schema.id_column(owner))
        filesystem, path, _ = open_uri(where)
        try:
            table = pq.read_table(path, filesystem=filesystem)
            wanted = [c for c in schema.columns_of(owner) if c in table.column_names]
            with as_log_error(redact_uri(where)):
                tables[owner] = FeatureTable(table.select([key, *wanted]) if key in table.column_names else table, key)
                fill_features(table.slice(0, 1), schema, {})  # types
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{redact_uri(where)}: cannot be read as Parquet ({single_line(error)})") from None
    return tables


class LogReader:
    """Reads one log.

    Args:
        path: Parquet file or folder, here or on another filesystem.
        schema: columns that every file must have.
        tables: side tables that complete the rows.
        labels: whether labels, masks and weights are read too; scoring does without.

    Raises:
        LogError: nothing there, or it cannot be reached.
    """

    def __init__(self, path: Uri, schema: Schema, tables: dict[Owner, FeatureTable], *, labels: bool = True) -> None:
        self._schema = schema
        self._tables = tables
        self._labels = labels
        self._files = {file.name: file for file in find_files(path)}

    def scan(
        self, since: datetime | None = None, until: datetime | None = None, *, drop_duplicates: bool = True
    ) -> Iterator[ScannedChunk]:
        """Chunks of the rows with since ≤ time < until (None: no bound), in order of files.

        Rows without a time belong to no span; they appear in every one, as bad ones.

        Raises:
            LogError: a file that cannot be read, lacks a column or has one of the wrong type; names it.
        """
        looked_up = [column for table in self._tables.values() for column in table.table.column_names]
        columns = ColumnCheck(self._schema, labels=self._labels, looked_up=looked_up, files=list(self._files.values()))
        for partition in self._partitions():
            seen = DuplicateFilter()  # exact repeats have one time, so they lie in one partition
            for file in partition:
                for chunk, table, first_row in self._read(file, columns, since, until):
                    asked = self._inside(table, since, until)
                    new = np.ones(len(asked), np.bool_)
                    if drop_duplicates:
                        new = seen.first_seen(_taken(table, asked))
                    yield self._clean(table, asked[new], asked[~new], chunk, first_row, file.display_name)

    def read_indexed(self, entries: Sequence[IndexedChunk], split: str, logs: LogsConfig) -> Iterator[pa.Table]:
        """The rows of a split that ``clean`` found good in neighbouring chunks of one file, a table a chunk.

        Only the columns that the schema names are read. Nothing is checked again but that the log is still the same.

        Raises:
            LogError: the file cannot be read, or is another than the one that was surveyed.
        """
        chunk = entries[0].chunk
        file = self._files.get(chunk.file)
        if file is None:
            raise LogError(f"{chunk.file}: is gone since the log was surveyed; restore it, or train again")
        columns = list(required_columns(self._schema, labels=True))
        try:
            with file.open() as opened:
                if opened.digest() != chunk.digest:
                    raise LogError(
                        f"{file.display_name}: changed since the log was surveyed; restore it, or train again"
                    )
                for group, those in groupby(entries, key=lambda entry: entry.chunk.group):
                    wanted = {entry.chunk.start: entry for entry in those}
                    start = 0
                    for table in opened.chunks(group, columns, max(wanted) + 1, threads=False):
                        if start in wanted:
                            yield self._split(table, wanted[start], split, logs, file.display_name)
                        start += table.num_rows
        except FileNotFoundError:
            raise LogError(
                f"{file.display_name}: is gone since the log was surveyed; restore it, or train again"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _split(self, table: pa.Table, entry: IndexedChunk, split: str, logs: LogsConfig, file: str) -> pa.Table:
        """The usable rows of one split of a chunk, completed."""
        table = _taken(table, np.delete(np.arange(table.num_rows), entry.excluded))
        if entry.rows_by_split[split] < table.num_rows:
            table = rows_in_range(table, self._schema.columns.time, *split_range(logs, split))
        if table.num_rows != entry.rows_by_split[split]:
            raise LogError(f"{file}: changed since the log was surveyed; restore it, or train again")
        with as_log_error(file):
            return fill_features(table, self._schema, self._tables)

    def _partitions(self) -> list[list[LogFile]]:
        """Files by folder."""
        folders: dict[PurePosixPath, list[LogFile]] = {}
        for file in self._files.values():
            folders.setdefault(file.folder, []).append(file)
        return list(folders.values())

    def _read(
        self, file: LogFile, columns: ColumnCheck, since: datetime | None, until: datetime | None
    ) -> Iterator[tuple[Chunk, pa.Table, int]]:
        """Raw chunks of a file and the position of their first row in it; row groups of other times are skipped."""
        try:
            with file.open() as opened:
                columns.check(file, opened.schema)
                span = None
                if since is not None or until is not None:
                    time = self._schema.columns.time
                    span = range_overlaps(time, opened.schema.field(time).type, since, until)
                digest, sizes = opened.digest(), opened.row_group_sizes
                for group in opened.row_groups_matching(span):
                    start = 0
                    for table in opened.chunks(group, None, None, threads=True):
                        yield Chunk(file.name, digest, group, start, table.num_rows), table, sum(sizes[:group]) + start
                        start += table.num_rows
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _inside(self, table: pa.Table, since: datetime | None, until: datetime | None) -> npt.NDArray[np.int64]:
        """Positions of the rows in a span of time or without a time."""
        positions = np.arange(table.num_rows)
        if since is None and until is None:
            return positions
        time = self._schema.columns.time
        rows = pa.table({time: table[time], "": positions})
        found: npt.NDArray[np.int64] = rows.filter(
            range_overlaps(time, table[time].type, since, until) | pc.field(time).is_null()
        )[""].to_numpy()
        return found

    def _clean(
        self,
        table: pa.Table,
        asked: npt.NDArray[np.int64],
        repeated: npt.NDArray[np.int64],
        chunk: Chunk,
        first_row: int,
        file: str,
    ) -> ScannedChunk:
        """Sorts the asked-for rows of a chunk into good and bad ones."""
        table = _taken(table, asked)
        with as_log_error(file):
            whole = fill_features(table, self._schema, self._tables)
            reasons = self._mark_bad(whole)
        good = reasons.is_null()
        wrong = pc.invert(good)
        wrong_positions = asked[wrong.to_numpy(zero_copy_only=False)]
        rows = [to_json(row, inf_nan_mode="strings", fallback=str).decode() for row in table.filter(wrong).to_pylist()]
        bad = pa.table(
            {
                "file": pa.array([file] * len(rows), pa.string()),
                "file_row": pa.array(first_row + wrong_positions, pa.int64()),
                "reason": reasons.drop_null(),
                "row": pa.array(rows, pa.string()),
            }
        )
        left_out = np.sort(np.concatenate([wrong_positions, repeated])).astype(np.int32)
        positions = first_row + asked[good.to_numpy(zero_copy_only=False)]
        return ScannedChunk(whole.filter(good), bad, len(repeated), file, chunk, left_out, positions)

    def _mark_bad(self, table: pa.Table) -> pa.Array:
        """Reason by row why it cannot be used; null where it can."""
        schema = self._schema
        reasons = pa.nulls(table.num_rows, pa.string())
        for feature, broken, how in invalid_rows(table, schema):
            reasons = add_reason(reasons, broken, f"feature '{feature.name}' {how}")
        reasons = add_reason(reasons, table[schema.columns.item].combine_chunks().is_null(), "the item id is null")
        if not self._labels:
            return reasons
        time = table[schema.columns.time].combine_chunks()
        reasons = add_reason(reasons, time.is_null(), "the time is null")
        return mark_labels(reasons, table, schema)


def _taken(table: pa.Table, positions: npt.NDArray[np.int64]) -> pa.Table:
    """The rows at rising positions; the table itself if these are all."""
    return table if len(positions) == table.num_rows else table.take(positions)


@contextmanager
def as_log_error(file: str) -> Iterator[None]:
    """Turns a complaint about a column into one that names the file.

    Raises:
        LogError: in place of an ``InvalidInputError``.
    """
    try:
        yield
    except InvalidInputError as error:
        raise LogError(f"{file}: column {error}") from None
