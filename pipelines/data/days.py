"""Which days a log covers, and which it lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import date, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

SHOWN = 10
"""Gaps that a message names."""


def count_days(times: pa.ChunkedArray) -> Counter[date]:
    """Rows by day, in the column's own time zone."""
    if getattr(times.type, "tz", None):
        times = pc.local_timestamp(times)
    counts = pc.value_counts(times.cast(pa.date32(), safe=False))
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def missing_days(days: Iterable[date]) -> list[tuple[date, date]]:
    """First and last day of each gap between the first and the last of the given days."""
    day = timedelta(days=1)
    return [(before + day, after - day) for before, after in pairwise(sorted(days)) if after - before > day]


def format_gaps(gaps: list[tuple[date, date]]) -> str:
    """Gaps for a person."""
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in gaps[:SHOWN]]
    more = len(gaps) - len(texts)
    return ", ".join(texts) + (f" and {more} more gaps" if more else "")
