"""Half-open time ranges, the ranges into which a log is split, and calendar days."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.config import LogsConfig
from ranking.errors import InvalidInputError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TimeRange:
    """The range since ≤ time < until.

    Attributes:
        since: inclusive lower bound; None for no bound.
        until: exclusive upper bound; None for no bound.
    """

    since: datetime | None = None
    until: datetime | None = None

    @property
    def bounded(self) -> bool:
        """Whether the range has a bound."""
        return self.since is not None or self.until is not None

    def before(self, until: datetime | None) -> TimeRange:
        """Return the part of the range before a time; None for the whole range."""
        if until is None or (self.until is not None and self.until <= until):
            return self
        return TimeRange(self.since, until)

    def expression(self, column: str, kind: pa.DataType) -> pc.Expression:
        """Return a filter for the rows in this range.

        Args:
            column: name of the time column.
            kind: its type.

        Raises:
            InvalidInputError: a bound has a time zone, but the column has none.
        """
        rows = pc.field(column).is_valid()
        if self.since is not None:
            rows &= pc.field(column) >= _bound(self.since, column, kind)
        if self.until is not None:
            rows &= pc.field(column) < _bound(self.until, column, kind)
        return rows

    def select(self, table: pa.Table, column: str) -> pa.Table:
        """Return the rows of a table whose time in ``column`` is in this range.

        Raises:
            InvalidInputError: a bound has a time zone, but the column has none.
        """
        return table.filter(self.expression(column, table.schema.field(column).type))

    def positions(self, times: pa.ChunkedArray, column: str, *, nulls: bool = False) -> npt.NDArray[np.int64]:
        """Return the positions of the times that are in this range.

        Args:
            times: the times.
            column: name of the time column.
            nulls: whether nulls are in the range.

        Raises:
            InvalidInputError: a bound has a time zone, but the column has none.
        """
        rows = self.expression(column, times.type)
        if nulls:
            rows |= pc.field(column).is_null()
        table = pa.table([times, np.arange(len(times))], names=[column, f"positions of {column}"])
        positions: npt.NDArray[np.int64] = table.filter(rows)[1].to_numpy()
        return positions


ALL_TIME = TimeRange()


def split_range(logs: LogsConfig, split: str) -> TimeRange:
    """Return the time range of a split; the three ranges are disjoint and cover all time that is read."""
    return {
        "train": TimeRange(logs.train_from, logs.validation_from),
        "validation": TimeRange(logs.validation_from, logs.test_from),
        "test": TimeRange(logs.test_from, logs.test_until),
    }[split]


def local_days(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the calendar day of each time as date32, in the time zone of the column."""
    return _local(times).cast(pa.date32(), safe=False)


def local_microseconds(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return times in microseconds since 1970 in the time zone of the column [rows]; the rows have no nulls."""
    microseconds: npt.NDArray[np.int64] = _local(times).cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()
    return microseconds


def _local(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times without their time zone, in local time."""
    return pc.local_timestamp(times) if getattr(times.type, "tz", None) else times


def _bound(moment: datetime, column: str, kind: pa.DataType) -> pa.Scalar:
    """Convert a bound to the type of the time column.

    A bound without a time zone is the local time of the column's zone: the first of two equal local times at the end of
    daylight saving time, and the end of the gap at its start.
    """
    zone = getattr(kind, "tz", None)
    if moment.tzinfo is not None and zone is None:
        raise InvalidInputError(
            column,
            f"has no time zone, but the split bound {moment.isoformat()} has one: write validation_from, test_from and "
            "train_from in [logs] without a time zone",
        )
    if pa.types.is_date(kind):
        return pa.scalar(moment.date(), kind)
    if zone is None or moment.tzinfo is not None:
        return pa.scalar(moment, kind)
    local = pa.scalar(moment, pa.timestamp(kind.unit if kind.unit != "s" else "us"))
    return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest").cast(kind, safe=False)
