"""Conversions of columns that the training cannot read as they are, and the copy in Parquet that holds the result."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.console import Progress
from pipelines.data.parquet import CHUNK_ROWS
from pipelines.data.row_group_writer import RowGroupWriter
from pipelines.init.sampling import Positions
from pipelines.init.source import Source
from ranking.errors import LogError

UNIT_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
EARLIEST, LATEST = datetime(1985, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""Range of Unix times; numbers outside are not times."""
SPLIT_DAYS = (date(2000, 1, 1), date(2000, 1, 2), date(2000, 1, 3))
"""Artificial days of the training, validation and test split of a log without a time."""

Convert = Callable[[pa.Array], pa.Array]
Make = Callable[[Positions], pa.Array]


@dataclass
class Conversions:
    """Changes of a table.

    Attributes:
        converted: conversion of each column that changes.
        added: values of each new column, from the positions of the rows in the table.
    """

    converted: dict[str, Convert] = field(default_factory=dict)
    added: dict[str, Make] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.converted or self.added)

    def apply(self, table: pa.Table, positions: Positions) -> pa.Table:
        """Return the table with all changes."""
        for name, convert in self.converted.items():
            column = table[name].combine_chunks()
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            table = table.set_column(table.column_names.index(name), name, convert(column))
        for name, make in self.added.items():
            table = table.append_column(name, make(positions))
        return table


def write_copy(source: Source, conversions: Conversions, file: Path) -> None:
    """Write the converted rows of a table to a Parquet file, chunk by chunk.

    Raises:
        LogError: the table cannot be read, or a column has a different type than in the sample.
        OSError: the file cannot be written.
    """
    schema = conversions.apply(source.sample.rows, source.sample.positions).schema
    progress = Progress(f"converting {source.location}", unit="rows")
    with RowGroupWriter(file) as writer:
        writer.write(schema.empty_table())
        for first_row, chunk in source.chunks():
            for start in range(0, chunk.num_rows, CHUNK_ROWS):
                rows = chunk.slice(start, CHUNK_ROWS)
                table = conversions.apply(rows, first_row + start + np.arange(rows.num_rows))
                writer.write(_with_schema(table, schema, source.location, first_row + start))
                progress.advance(rows.num_rows)
    progress.close()


def _with_schema(table: pa.Table, schema: pa.Schema, location: str, first_row: int) -> pa.Table:
    """Return rows with the columns and types of the sample; columns that a file does not have are null."""
    for name in schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise LogError(
            f"{location}: one of the {table.num_rows:,} rows from row {first_row:,} on has another type than the "
            f"sample ({reason}): write one type"
        ) from None


def unix_times(unit: str) -> Convert:
    """Return the conversion from Unix times to timestamps in UTC; null outside 1985 to 2100."""

    def convert(column: pa.Array) -> pa.Array:
        numbers = column.cast(pa.float64(), safe=False)
        scale = UNIT_SECONDS[unit]
        valid = pc.and_(
            pc.greater_equal(numbers, EARLIEST.timestamp() / scale), pc.less(numbers, LATEST.timestamp() / scale)
        )
        if pa.types.is_integer(column.type):
            whole = pc.if_else(valid, column.cast(pa.int64(), safe=False), pa.scalar(None, pa.int64()))
            return whole.cast(pa.timestamp(unit, "UTC"))
        micros = pc.round(pc.multiply(pc.if_else(valid, numbers, pa.scalar(None, pa.float64())), scale * 1e6))
        return micros.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))

    return convert


def text_times(*, zoned: bool) -> Convert:
    """Return the conversion from ISO 8601 text to timestamps, in UTC if the text has offsets; null for other text."""
    kind = pa.timestamp("us", "UTC" if zoned else None)

    def parse(text: str | None) -> datetime | None:
        try:
            moment = None if text is None else datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        return moment if moment is not None and (moment.tzinfo is not None) == zoned else None

    def convert(column: pa.Array) -> pa.Array:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            return pa.array([parse(text) for text in column.to_pylist()], kind)

    return convert


def reordered_times(separator: str, *, day_first: bool) -> Convert:
    """Return the conversion from text such as ``31.12.2026 10:00`` to timestamps; null for other text.

    Args:
        separator: text between day, month and year.
        day_first: whether the day comes before the month.
    """
    numbers = re.escape(separator).join([r"(\d{1,2})", r"(\d{1,2})", r"(\d{4})"])
    pattern = re.compile(rf"\s*{numbers}(?:\s+(\d{{1,2}}):(\d\d)(?::(\d\d))?)?\s*", re.ASCII)

    def parse(text: str | None) -> datetime | None:
        match = None if text is None else pattern.fullmatch(text)
        if match is None:
            return None
        first, second, year, hour, minute, seconds = (int(part or 0) for part in match.groups())
        month, day = (second, first) if day_first else (first, second)
        try:
            return datetime(year, month, day, hour, minute, seconds)
        except ValueError:
            return None

    def convert(column: pa.Array) -> pa.Array:
        return pa.array([parse(text) for text in column.to_pylist()], pa.timestamp("us"))

    return convert


def day_numbers(column: pa.Array) -> pa.Array:
    """Convert numbers such as 20260109 to dates; null for other numbers."""
    text = column.cast(pa.int64(), safe=False).cast(pa.string())
    eight = pc.if_else(pc.match_substring_regex(text, r"^\d{8}$"), text, pa.scalar(None, pa.string()))
    return pc.strptime(eight, format="%Y%m%d", unit="s", error_is_null=True).cast(pa.date32())


def two_values(negative: object, positive: object) -> Convert:
    """Return the conversion of a label with two values to 0 and 1; null for other values."""

    def convert(column: pa.Array) -> pa.Array:
        ones, zeros = (pc.equal(column, pa.scalar(value, column.type)) for value in (positive, negative))
        return pc.if_else(pc.fill_null(pc.or_(ones, zeros), False), ones.cast(pa.int8()), pa.scalar(None, pa.int8()))

    return convert


def split_text(separator: str) -> Convert:
    """Return the conversion from text such as ``A|B`` to a list of its parts; empty text becomes an empty list."""
    blank = separator == " "

    def convert(column: pa.Array) -> pa.Array:
        parts = [
            None
            if text is None
            else [part.strip() for part in text.split(None if blank else separator) if part.strip()]
            for text in column.to_pylist()
        ]
        return pa.array(parts, pa.list_(pa.string()))

    return convert


def without_value(value: float) -> Convert:
    """Return the conversion of a number that stands for "unknown" to null; NaN and infinite numbers become null too."""

    def convert(column: pa.Array) -> pa.Array:
        numbers = finite_numbers(column)
        return pc.if_else(pc.equal(numbers, value), pa.scalar(None, pa.float64()), numbers)

    return convert


def finite_numbers(column: pa.Array) -> pa.Array:
    """Convert numbers to float64; null where NaN or infinite."""
    numbers = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def random_split_times(positions: Positions) -> pa.Array:
    """Return artificial times that divide rows at random: of ten rows in a row, eight train, one validates, one tests.

    Every time is different and, within a split, in the order of the log.
    """
    blocks = positions // 10
    state = np.asarray(blocks, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    draw = (state % np.uint64(90)).astype(np.int64)
    validation, step = draw // 9, draw % 9
    test = (validation + 1 + step) % 10
    within = positions % 10
    split = np.where(within == test, 2, np.where(within == validation, 1, 0))
    days = np.array([np.datetime64(day, "us") for day in SPLIT_DAYS])
    return pa.array(days[split] + positions.astype("timedelta64[us]"))


def row_numbers(positions: Positions) -> pa.Array:
    """Return the positions of the rows, as ids of items in a log without item ids."""
    return pa.array(positions, pa.int64())


def nulls(positions: Positions) -> pa.Array:
    """Return a column of nulls: the user ids of a log without users."""
    return pa.nulls(len(positions), pa.string())
