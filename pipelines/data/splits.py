"""Half-open time ranges, and the ranges into which a log is split."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.config import LogsConfig

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

    def expression(self, column: str, kind: pa.DataType) -> pc.Expression:
        """Return a filter for the rows in this range.

        Args:
            column: name of the time column.
            kind: its type.
        """
        rows = pc.field(column).is_valid()
        if self.since is not None:
            rows &= pc.field(column) >= _bound(self.since, kind)
        if self.until is not None:
            rows &= pc.field(column) < _bound(self.until, kind)
        return rows

    def select(self, table: pa.Table, column: str) -> pa.Table:
        """Return the rows of a table whose time in ``column`` is in this range."""
        return table.filter(self.expression(column, table.schema.field(column).type))


ALL_TIME = TimeRange()


def split_range(logs: LogsConfig, split: str) -> TimeRange:
    """Return the time range of a split; the three ranges are disjoint and cover all time from ``logs.train_from``."""
    return {
        "train": TimeRange(logs.train_from, logs.validation_from),
        "validation": TimeRange(logs.validation_from, logs.test_from),
        "test": TimeRange(logs.test_from, None),
    }[split]


def _bound(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """Convert a bound to the type of the time column; if only the column has a time zone, the bound is in UTC."""
    if pa.types.is_date(kind):
        return pa.scalar(moment.date(), kind)
    if getattr(kind, "tz", None) is None:
        return pa.scalar(moment.replace(tzinfo=None), kind)
    return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=UTC), kind)
