"""Streams a log from Parquet: cleaned, completed with the side tables, split by time. Never all of it in memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pipelines.config import LogsConfig
from pipelines.logs.duplicates import DuplicateFilter
from ranking.errors import InvalidInputError, LogError
from ranking.features import FeatureTable, complete, mark, violations
from ranking.schema import Owner, Schema

BATCH_ROWS = 65_536
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Cleaned:
    """What became of one batch of a log.

    Attributes:
        rows: completed rows that can be used.
        bad: rows that cannot, as they stand in the file, with their ``reason``, ``file`` and position (``file_row``).
        duplicates: exact repeats that were left out.
        file: where the batch came from.
    """

    rows: pa.Table
    bad: pa.Table
    duplicates: int
    file: str


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
            tables[owner] = FeatureTable(table.select([key, *wanted]) if key in table.column_names else table, key)
            complete(table.slice(0, 1), schema, {})  # types
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{path}: cannot be read as Parquet ({error})") from None
        except InvalidInputError as error:
            raise LogError(f"{path}: column {error}") from None
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
            dataset = ds.dataset(path, format="parquet", partitioning="hive")
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{path}: cannot be read as Parquet ({error}); restore the file or move it away") from None
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
        fragments = self._fragments
        if order is not None:
            fragments = [fragments[i] for i in order.permutation(len(fragments))]
        seen, folder = DuplicateFilter(), None
        for fragment in fragments:
            if Path(fragment.path).parent != folder:  # exact repeats have one time, so they lie in one partition
                seen, folder = DuplicateFilter(), Path(fragment.path).parent
            for table, first_row in self._read(fragment, since, until):
                kept = np.arange(table.num_rows)
                if drop_duplicates:
                    kept = np.flatnonzero(seen.first_seen(table))
                yield self._clean(table.take(kept), kept + first_row, table.num_rows - len(kept), fragment.path)

    def _read(self, fragment: Any, since: datetime | None, until: datetime | None) -> Iterator[tuple[pa.Table, int]]:
        """Raw tables of a file, partition keys included, and the position of their first row."""
        try:
            schema = fragment.physical_schema
            keys = ds.get_partition_keys(fragment.partition_expression)
            self._check_columns(fragment.path, {*schema.names, *keys})
            time, row = self._schema.columns.time, 0
            in_split = None if since is None and until is None else _within(time, schema.field(time).type, since, until)
            for batch in fragment.to_batches(schema=schema, batch_size=BATCH_ROWS, filter=in_split):
                if batch.num_rows:
                    table = pa.Table.from_batches([batch])
                    for key, value in keys.items():
                        table = table.append_column(
                            key, pa.array([value]).take(pa.array(np.zeros(len(batch), np.int64)))
                        )
                    yield table, row
                    row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{fragment.path}: cannot be read ({error}); restore the file or move it away") from None

    def _check_columns(self, file: str, names: set[str]) -> None:
        """Every label, id and feature must come from the log or from a side table."""
        schema = self._schema
        known = names | {column for table in self._tables.values() for column in table.table.column_names}
        needed = {feature.column: f"feature '{feature.name}'" for feature in schema.features}
        needed |= {schema.columns.item: "the item id"}
        if self._labels:
            needed |= {schema.columns.time: "the time", schema.columns.user: "the user id"}
        for column, what in needed.items():
            if column not in (names if column in (schema.columns.item, schema.columns.user) else known):
                raise LogError(f"{file}: column '{column}' ({what}) is missing{_hint(column, known)}")
        for task in schema.tasks if self._labels else ():
            if task.label not in names:
                raise LogError(
                    f"{file}: column '{task.label}' (label of task '{task.name}') is missing{_hint(task.label, names)}"
                )

    def _clean(self, table: pa.Table, positions: np.ndarray[Any, Any], duplicates: int, file: str) -> Cleaned:
        try:
            whole = complete(table, self._schema, self._tables)
            reasons = self._mark_bad(whole)
        except InvalidInputError as error:
            raise LogError(f"{file}: column {error}") from None
        good = reasons.is_null()
        bad = table.filter(pc.invert(good))
        bad = bad.append_column("reason", reasons.drop_null())
        bad = bad.append_column("file", pa.array([file] * bad.num_rows, pa.string()))
        bad = bad.append_column("file_row", pa.array(positions).filter(pc.invert(good)))
        return Cleaned(whole.filter(good), bad, duplicates, file)

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
        if not (pa.types.is_timestamp(time.type) or pa.types.is_date(time.type)):
            raise InvalidInputError(schema.columns.time, f"holds {time.type}, but is the time: write timestamps")
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


def split_bounds(logs: LogsConfig, split: str) -> tuple[datetime | None, datetime | None]:
    """[since, until) of a split; the three are disjoint and cover all time."""
    return {
        "train": (None, logs.validation_from),
        "validation": (logs.validation_from, logs.test_from),
        "test": (logs.test_from, None),
    }[split]


def within(table: pa.Table, column: str, since: datetime | None, until: datetime | None) -> pa.Table:
    """The rows with since ≤ time < until; None is no bound."""
    return table.filter(_within(column, table.schema.field(column).type, since, until))


def _within(column: str, kind: pa.DataType, since: datetime | None, until: datetime | None) -> pc.Expression:
    inside = pc.field(column).is_valid()
    if since is not None:
        inside &= pc.field(column) >= _moment(since, kind)
    if until is not None:
        inside &= pc.field(column) < _moment(until, kind)
    return inside


def _moment(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """A bound in the type of the time column; a bound without a zone is UTC where the column has one."""
    if pa.types.is_date(kind):
        return pa.scalar(moment.date(), kind)
    if getattr(kind, "tz", None) is None:
        return pa.scalar(moment.replace(tzinfo=None), kind)
    return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=UTC), kind)


def _hint(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean '{close[0]}'?" if close else f" (found: {', '.join(sorted(known))})"
