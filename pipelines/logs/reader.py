"""Streams a log from Parquet: cleaned, completed with the side tables, split by time. Never all of it in memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, LocalFileSystem
from pydantic_core import to_json

from pipelines.config import LogsConfig
from pipelines.logs.duplicates import DuplicateFilter
from pipelines.logs.splits import inside
from ranking.errors import InvalidInputError, LogError
from ranking.features import FeatureTable, complete, mark, violations
from ranking.schema import Owner, Schema

BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Cleaned:
    """What became of one batch of a log.

    Attributes:
        rows: completed rows that can be used.
        bad: rows that cannot: ``file``, position in it (``file_row``), ``reason``, and the ``row`` as JSON text.
        duplicates: exact repeats that were left out.
        file: where the batch came from.
        positions: of ``rows`` among the file's rows of the asked-for time [rows] int64.
    """

    rows: pa.Table
    bad: pa.Table
    duplicates: int
    file: str
    positions: npt.NDArray[np.int64]


def load_tables(logs: LogsConfig, schema: Schema) -> dict[Owner, FeatureTable]:
    """The side tables of users and items that the configuration names.

    Raises:
        LogError: a file that cannot be read, lacks its id column or names an id twice.
    """
    tables: dict[Owner, FeatureTable] = {}
    sides: tuple[tuple[Owner, Path | None], ...] = (("user", logs.users), ("item", logs.items))
    for owner, path in sides:
        if path is None:
            continue
        key = str(schema.id_column(owner))
        try:
            table = pq.read_table(path)
            wanted = [c for c in schema.owned_columns(owner) if c in table.column_names]
            with blaming(str(path)):
                tables[owner] = FeatureTable(table.select([key, *wanted]) if key in table.column_names else table, key)
                complete(table.slice(0, 1), schema, {})  # types
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{path}: cannot be read as Parquet ({_line(error)})") from None
    return tables


class LogReader:
    """Reads one log.

    Args:
        path: Parquet file or folder.
        schema: columns that every file must have.
        tables: side tables that complete the rows.
        labels: whether the tasks' labels are read too; scoring does without.

    Raises:
        LogError: nothing there, or the first file is no Parquet.
    """

    def __init__(self, path: Path, schema: Schema, tables: dict[Owner, FeatureTable], *, labels: bool = True) -> None:
        self._schema = schema
        self._tables = tables
        self._labels = labels
        if not path.exists():
            raise LogError(f"{path}: no such log; name a Parquet file or a folder of them")
        try:
            dataset = _dataset(path)
        except (OSError, pa.ArrowException) as error:
            raise LogError(
                f"{path}: cannot be read as Parquet ({_line(error)}); restore the file or move it away"
            ) from None
        self._fragments = sorted(dataset.get_fragments(), key=lambda fragment: fragment.path)
        if not self._fragments:
            raise LogError(f"{path}: holds no Parquet file; an empty log trains nothing")

    def clean(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        order: np.random.Generator | None = None,
        *,
        drop_duplicates: bool = True,
    ) -> Iterator[Cleaned]:
        """Batches of the rows with since ≤ time < until (None: no bound), in order of files or in a random one.

        Rows without a time only appear, as bad ones, when neither bound is given.

        Raises:
            LogError: a file that cannot be read, lacks a column or has one of the wrong type; names it.
        """
        for partition in self._partitions(order):
            seen = DuplicateFilter()  # exact repeats have one time, so they lie in one partition
            for fragment in partition:
                for table, first_row in self._read(fragment, since, until):
                    kept = np.arange(table.num_rows)
                    if drop_duplicates:
                        kept = np.flatnonzero(seen.first_seen(table))
                    yield self._clean(table.take(kept), kept + first_row, table.num_rows - len(kept), fragment.path)

    def _partitions(self, order: np.random.Generator | None) -> list[list[Any]]:
        """Files by folder; in a random order, folders and the files in them are shuffled, but folders stay together."""
        folders: dict[Path, list[Any]] = {}
        for fragment in self._fragments:
            folders.setdefault(Path(fragment.path).parent, []).append(fragment)
        partitions = list(folders.values())
        if order is None:
            return partitions
        return [
            [partition[i] for i in order.permutation(len(partition))]
            for partition in (partitions[i] for i in order.permutation(len(partitions)))
        ]

    def _read(self, fragment: Any, since: datetime | None, until: datetime | None) -> Iterator[tuple[pa.Table, int]]:
        """Raw tables of a file, partition keys included, and the position of their first row."""
        try:
            schema = fragment.physical_schema
            keys = ds.get_partition_keys(fragment.partition_expression)
            keys = {key: value for key, value in keys.items() if key not in schema.names}
            self._check_columns(fragment.path, schema, set(keys))
            time, row, in_split = self._schema.columns.time, 0, None
            if since is not None or until is not None:
                in_split = inside(time, schema.field(time).type, since, until)
            for batch in fragment.to_batches(schema=schema, batch_size=BATCH_ROWS, filter=in_split):
                if batch.num_rows:
                    table = pa.Table.from_batches([batch])
                    for key, value in keys.items():
                        table = table.append_column(key, pa.repeat(value, len(batch)))
                    yield table, row
                    row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise LogError(
                f"{fragment.path}: cannot be read ({_line(error)}); restore the file or move it away"
            ) from None

    def _check_columns(self, file: str, columns: pa.Schema, keys: set[str]) -> None:
        """Every label, id and feature must come from the log or from a side table, and the time must be one."""
        schema, names = self._schema, {*columns.names, *keys}
        known = names | {column for table in self._tables.values() for column in table.table.column_names}
        needed = {feature.column: f"feature '{feature.name}'" for feature in schema.features}
        needed |= {schema.columns.item: "the item id"}
        if self._labels:
            needed |= {schema.columns.time: "the time", schema.columns.user: "the user id"}
            if schema.columns.request is not None:
                needed |= {schema.columns.request: "the request id"}
        for column, what in needed.items():
            if column not in (names if column in (schema.columns.item, schema.columns.user) else known):
                raise LogError(f"{file}: column '{column}' ({what}) is missing{_hint(column, known)}")
        if not self._labels:
            return
        for task in schema.tasks:
            if task.label not in names:
                what = f"label of task '{task.name}'"
                raise LogError(f"{file}: column '{task.label}' ({what}) is missing{_hint(task.label, names)}")
        time = columns.field(schema.columns.time).type if schema.columns.time in columns.names else pa.string()
        if not (pa.types.is_timestamp(time) or pa.types.is_date(time)):
            raise LogError(f"{file}: column '{schema.columns.time}' holds {time}, but is the time: write timestamps")

    def _clean(self, table: pa.Table, positions: npt.NDArray[np.int64], duplicates: int, file: str) -> Cleaned:
        with blaming(file):
            whole = complete(table, self._schema, self._tables)
            reasons = self._mark_bad(whole)
        good = reasons.is_null()
        wrong = pc.invert(good)
        rows = [to_json(row, inf_nan_mode="strings", fallback=str).decode() for row in table.filter(wrong).to_pylist()]
        bad = pa.table(
            {
                "file": pa.array([file] * len(rows), pa.string()),
                "file_row": pa.array(positions).filter(wrong),
                "reason": reasons.drop_null(),
                "row": pa.array(rows, pa.string()),
            }
        )
        return Cleaned(whole.filter(good), bad, duplicates, file, positions[good.to_numpy(zero_copy_only=False)])

    def _mark_bad(self, table: pa.Table) -> pa.Array:
        """Reason by row why it cannot be used; null where it can."""
        schema = self._schema
        reasons = pa.nulls(table.num_rows, pa.string())
        for feature, broken, how in violations(table, schema):
            reasons = mark(reasons, broken, f"feature '{feature.name}' {how}")
        reasons = mark(reasons, table[schema.columns.item].combine_chunks().is_null(), "the item id is null")
        if not self._labels:
            return reasons
        time = table[schema.columns.time].combine_chunks()
        reasons = mark(reasons, time.is_null(), "the time is null")
        for task in schema.tasks:
            label = table[task.label].combine_chunks()
            if pa.types.is_null(label.type):
                continue
            if not (
                pa.types.is_integer(label.type) or pa.types.is_floating(label.type) or pa.types.is_boolean(label.type)
            ):
                raise InvalidInputError(
                    task.label, f"holds {label.type}, but is the label of '{task.name}': write numbers"
                )
            label = label.cast(pa.int8()) if pa.types.is_boolean(label.type) else label
            label = label.cast(pa.float64())
            if task.kind == "binary":
                wrong = pc.and_(pc.not_equal(label, 0.0), pc.not_equal(label, 1.0))
                reasons = mark(reasons, wrong, f"label '{task.label}' is neither 0 nor 1")
            else:
                reasons = mark(reasons, pc.invert(pc.is_finite(label)), f"label '{task.label}' is NaN or infinite")
                if task.transform == "log1p":
                    reasons = mark(
                        reasons, pc.less_equal(label, -1.0), f"label '{task.label}' is −1 or less, but log1p"
                    )
        return reasons


@contextmanager
def blaming(file: str) -> Iterator[None]:
    """Turns a complaint about a column into one that names the file.

    Raises:
        LogError: in place of an ``InvalidInputError``.
    """
    try:
        yield
    except InvalidInputError as error:
        raise LogError(f"{file}: column {error}") from None


def _dataset(path: Path) -> ds.Dataset:
    """The files of a log; a partition key may be a column of its files too, whatever its type there."""
    if path.is_file():
        return ds.dataset(path, format="parquet")
    options = ds.FileSystemFactoryOptions(partition_base_dir=str(path), exclude_invalid_files=False)
    options.partitioning_factory = ds.HivePartitioning.discover()
    files = FileSelector(str(path), recursive=True)
    factory = ds.FileSystemDatasetFactory(LocalFileSystem(), files, ds.ParquetFileFormat(), options)
    return factory.finish(factory.inspect(promote_options="permissive", fragments=1))


def _line(error: Exception) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split())


def _hint(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known - {name}, 1)
    return f"; did you mean '{close[0]}'?" if close else f" (found: {', '.join(sorted(known))})"
