"""Number of occurrences of each id of a vocabulary, counted one batch at a time, also in parts."""

from __future__ import annotations

from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

MIN_PENDING, MAX_BATCHES = 1_000_000, 1_000
"""Number of counts of single batches up to which they are not merged, and of the batches."""


class IdCounts:
    """Counts ids of one type.

    The counts of batches are merged when they are as many as the merged ones, so that an id is merged a logarithmic
    number of times and memory is proportional to the number of ids, not of rows.

    Args:
        dtype: type of the ids: int64 or string.
    """

    def __init__(self, dtype: pa.DataType) -> None:
        self.dtype = dtype
        self._schema = pa.schema([("id", dtype), ("count", pa.int64())])
        self._merged = self._schema.empty_table()
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def add(self, ids: pa.Array) -> None:
        """Count the ids of a batch, which have the type ``dtype``; nulls are not counted."""
        counts = pc.value_counts(ids.drop_null())
        self._append(pa.table([counts.field("values"), counts.field("counts")], schema=self._schema))

    def merge(self, part: Self) -> None:
        """Add the counts of other ids of the same type."""
        for counts in (part._merged, *part._pending):
            self._append(counts)

    def _append(self, counts: pa.Table) -> None:
        self._pending.append(counts)
        self._pending_rows += len(counts)
        if self._pending_rows > max(MIN_PENDING, self._merged.num_rows) or len(self._pending) == MAX_BATCHES:
            self._merge()

    def rare_share(self, min_count: int) -> float:
        """Return the share of the counted ids that occur less often than ``min_count``; 0 without ids."""
        counts = self._merge()["count"]
        rare = pc.sum(counts.filter(pc.less(counts, min_count))).as_py() or 0
        return rare / max(pc.sum(counts).as_py() or 0, 1)

    def frequent(self, min_count: int) -> pa.Array:
        """Return the ids that occur at least ``min_count`` times, in descending order of count, then of value."""
        counts = self._merge()
        kept = counts.filter(pc.greater_equal(counts["count"], min_count))
        ids: pa.Array = kept.sort_by([("count", "descending"), ("id", "ascending")])["id"].combine_chunks()
        return ids

    def _merge(self) -> pa.Table:
        """Merge the pending counts, and return the count of each id."""
        if self._pending:
            counts = pa.concat_tables([self._merged, *self._pending]).group_by("id").aggregate([("count", "sum")])
            self._merged = counts.rename_columns({"count_sum": "count"}).select(["id", "count"]).combine_chunks()
            self._pending, self._pending_rows = [], 0
        return self._merged
