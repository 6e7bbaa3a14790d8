"""How time splits a log: three disjoint half-open spans that cover all that is read of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.config import LogsConfig

SPLITS = ("train", "validation", "test")


def split_range(logs: LogsConfig, split: str) -> tuple[datetime | None, datetime | None]:
    """[since, until) of a split; the three are disjoint and cover all time from ``logs.train_from``."""
    return {
        "train": (logs.train_from, logs.validation_from),
        "validation": (logs.validation_from, logs.test_from),
        "test": (logs.test_from, None),
    }[split]


def rows_in_range(table: pa.Table, column: str, since: datetime | None, until: datetime | None) -> pa.Table:
    """The rows with since ≤ time < until; None is no bound."""
    return table.filter(range_overlaps(column, table.schema.field(column).type, since, until))


def range_overlaps(column: str, kind: pa.DataType, since: datetime | None, until: datetime | None) -> pc.Expression:
    """The filter since ≤ time < until for a time column of this type; None is no bound."""
    rows = pc.field(column).is_valid()
    if since is not None:
        rows &= pc.field(column) >= _moment(since, kind)
    if until is not None:
        rows &= pc.field(column) < _moment(until, kind)
    return rows


def _moment(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """A bound in the type of the time column; a bound without a zone is UTC where the column has one."""
    if pa.types.is_date(kind):
        return pa.scalar(moment.date(), kind)
    if getattr(kind, "tz", None) is None:
        return pa.scalar(moment.replace(tzinfo=None), kind)
    return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=UTC), kind)
