"""Counters of every impression: sums over the events of its key that were known at its time.

An event at time s is known to an impression at time t if s + delay < t, or if s is before the day of t. A window
additionally excludes events before its start. Sums over such a range are differences of cumulative sums per key. ASOF
joins find the cumulative sums at both ends of the range.

With a half-life h, an event at time s has the weight 2^((s - first) / h) in the cumulative sums, where ``first`` is the
time of the first event. Its weight 2^((s - t) / h) at time t differs from that by a factor that depends only on t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.counters.database import BATCH_ROWS
from pipelines.counters.events import MICROSECONDS, Events, has_list, known_until
from ranking.counters.keys import root_part
from ranking.counters.state import CounterState, bucket_numbers, row_type
from ranking.counters.values import NEVER, Sums, counter_values
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.errors import ConfigError
from ranking.schema import ID_OWNERS, Counter, Schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Records = npt.NDArray[Any]
"""Records of ``row_type``."""

MAX_HALF_LIVES = 900
"""Maximum length of a log in half-lives: 2^900 is a valid weight in float64."""
NULL_TIME = f"CAST('{NEVER}' AS BIGINT)"
"""The time ``NEVER`` in SQL."""


@dataclass(frozen=True)
class EarlierSums:
    """Sums of a counter over an earlier log; each record counts as an event at its time.

    Attributes:
        rows: sums by key.
        base: sums over all keys.
    """

    rows: Records
    base: Records

    @classmethod
    def of(cls, state: CounterState) -> EarlierSums:
        """Return the sums of a state."""
        return cls(state.rows, state.base)


class CounterQuery:
    """Computes one counter of a log.

    Args:
        connection: database with the events of the log.
        events: the events, at least one.
        schema: schema with the counter.
        counter: the counter.
        earlier: sums over an earlier log; None for none.

    Raises:
        ConfigError: the half-life is too short for the log.
    """

    def __init__(
        self,
        connection: DuckDBPyConnection,
        events: Events,
        schema: Schema,
        counter: Counter,
        earlier: EarlierSums | None = None,
    ) -> None:
        assert events.span is not None
        self._connection, self._counter, self._zone = connection, counter, events.zone
        self._first, self._last = events.span
        self._check_half_life()
        self._pooled = has_list(counter, schema)
        self._names = ["n", *(f"{kind}{j}" for j in range(len(counter.labels)) for kind in ("count", "sum"))]
        empty = np.empty(0, row_type(counter))
        self._earlier = earlier or EarlierSums(empty, empty)
        self._create_views(schema)

    def _check_half_life(self) -> None:
        counter, seconds = self._counter, (self._last - self._first) / MICROSECONDS
        if counter.half_life_seconds is not None and seconds > MAX_HALF_LIVES * counter.half_life_seconds:
            raise ConfigError(
                f"counter '{counter.name}': half_life = '{counter.half_life}' is too short for a log of "
                f"{seconds / 86_400:.0f} days: use at least '{int(seconds / MAX_HALF_LIVES / 60) + 1}m', or a window"
            )

    def _create_views(self, schema: Schema) -> None:
        """Create the views ``base_events`` and ``key_events``, the latter with a row per event and key."""
        counter, i = self._counter, schema.counters.index(self._counter)
        half_life, windowed, until = counter.half_life_seconds, counter.buckets is not None, known_until(counter)
        root = root_part(counter, schema)
        owners = {feature.name: owner for owner in ID_OWNERS if (feature := schema.key_feature(owner)) is not None}
        columns = {
            "row": "row",
            "t": "t",
            "until": until,
            "low": f"least(from_{i}, {until})" if windowed else NULL_TIME,
            "bucket": f"bucket_{i}" if windowed else "0::BIGINT",
            "root": "0::BIGINT" if root is None else owners[root],
            "weight": "1.0::DOUBLE" if half_life is None else f"pow(2.0, (t - {self._first}) / {half_life}e6)",
        }
        columns |= {f"label{j}": f"label_{schema.task_names.index(name)}" for j, name in enumerate(counter.labels)}
        selected = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
        key = f"unnest(key_{i})" if self._pooled else f"key_{i}"
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW base_events AS SELECT {selected} FROM events")
        self._connection.execute(
            f"CREATE OR REPLACE TEMP VIEW key_events AS SELECT {selected}, {key} AS key FROM events"
        )

    def fill(self, values: npt.NDArray[np.float32]) -> None:
        """Set the values of all events.

        Args:
            values: values of the counter's features [columns, rows of the log].
        """
        self._create_cumulative_sums()
        base = self._base()
        for batch in self._read(self._known_sums()):
            now = batch["t"]
            weights = self._weights(now, sign=-1)
            sums = self._to_sums(batch, batch["last"]).weighted(weights)
            base_sums = base.between(batch["low"], batch["until"]).weighted(weights)
            values[:, batch["row"]] = counter_values(self._counter, sums, base_sums, now).T.astype(np.float32)

    def _create_cumulative_sums(self) -> None:
        """Create the table ``cumulative`` with the sums over the events of each key up to each of its times."""
        self._connection.register("earlier_sums", self._table(self._earlier.rows))
        running = ", ".join(f"sum({name}) OVER earlier AS {name}" for name in self._names)
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE cumulative AS WITH sums AS ("
            f"SELECT key, t, {self._totals()} FROM key_events WHERE key IS NOT NULL GROUP BY key, t "
            f"UNION ALL BY NAME SELECT * FROM earlier_sums) "
            f"SELECT key, t, {running} FROM sums "
            "WINDOW earlier AS (PARTITION BY key ORDER BY t ROWS UNBOUNDED PRECEDING)"
        )

    def _known_sums(self) -> str:
        """Return the query for the sums over the known events of each event's keys."""
        windowed = self._counter.buckets is not None
        sums = ", ".join(
            f"coalesce(a.{name}, 0.0) - coalesce(b.{name}, 0.0) AS {name}" if windowed else f"a.{name}"
            for name in self._names
        )
        query = (
            f"SELECT e.row, e.t, e.until, e.low, {sums}, CASE WHEN a.t >= e.low THEN a.t END AS last "
            "FROM key_events AS e ASOF LEFT JOIN cumulative AS a ON e.key = a.key AND e.until > a.t"
        )
        if windowed:
            query += " ASOF LEFT JOIN cumulative AS b ON e.key = b.key AND e.low > b.t"
        if self._pooled:
            pooled = ", ".join(f"sum({name}) AS {name}" for name in self._names)
            once = ", ".join(f"any_value({name}) AS {name}" for name in ("t", "until", "low"))
            query = f"SELECT row, {once}, {pooled}, max(last) AS last FROM ({query}) GROUP BY row"
        sums = ", ".join(f"coalesce({name}, 0.0) AS {name}" for name in self._names)
        return f"SELECT row, t, until, low, coalesce(last, {NULL_TIME}) AS last, {sums} FROM ({query})"

    def _base(self) -> _BaseSums:
        """Return the cumulative sums over all keys."""
        query = f"SELECT t, {self._totals()} FROM base_events GROUP BY t"
        earlier = self._table(self._earlier.base)
        table = {name: np.concatenate([values, earlier[name].to_numpy()]) for name, values in self._all(query).items()}
        order = np.argsort(table["t"], kind="stable")
        times = table["t"][order]
        return _BaseSums(times, self._to_sums({name: values[order] for name, values in table.items()}, times))

    def state(self) -> tuple[Records, Records]:
        """Return the sums by key and over all keys after the last event, as ``write_counter_state`` stores them."""
        oldest = None
        if self._counter.buckets is not None:
            current = bucket_numbers(self._counter, np.array([self._last]), self._zone)
            oldest = int(current[0]) - self._counter.buckets
        condition = "" if oldest is None else f"AND bucket > {oldest}"
        totals = f"bucket, max(t) AS last, {self._totals()}"
        rows = self._all(
            f"SELECT key, any_value(root) AS root, {totals} FROM key_events WHERE key IS NOT NULL {condition} "
            "GROUP BY key, bucket"
        )
        base = self._all(
            f"SELECT 0::BIGINT AS key, 0::BIGINT AS root, {totals} FROM base_events WHERE true {condition} "
            "GROUP BY bucket"
        )
        return self._records(rows), self._records(base)

    def _records(self, table: Mapping[str, Any]) -> Records:
        records = np.zeros(len(table["key"]), row_type(self._counter))
        for name in ("key", "root", "bucket", "last"):
            records[name] = table[name]
        sums = self._to_sums(table, records["last"]).weighted(self._weights(records["last"], sign=-1))
        records["count"], records["label_counts"] = sums.count, sums.label_counts
        records["label_sums"] = sums.label_sums
        return records

    def _totals(self) -> str:
        """Return the sums over events in SQL."""
        parts = ["sum(weight) AS n"]
        for j in range(len(self._counter.labels)):
            parts.append(f"coalesce(sum(weight) FILTER (label{j} IS NOT NULL), 0.0) AS count{j}")
            parts.append(f"coalesce(sum(weight * label{j}), 0.0) AS sum{j}")
        return ", ".join(parts)

    def _table(self, records: Records) -> pa.Table:
        """Return records as events with the weights of events."""
        weights = self._weights(records["last"], sign=1)
        columns = {"key": records["key"], "t": records["last"], "n": records["count"] * weights}
        for j in range(len(self._counter.labels)):
            columns[f"count{j}"] = records["label_counts"][:, j] * weights
            columns[f"sum{j}"] = records["label_sums"][:, j] * weights
        return pa.table(columns)

    def _weights(self, times: IdArray, sign: int) -> FloatArray:
        """Return 2^(± (time - first) / half-life) [n]; 1 without a half-life."""
        half_life = self._counter.half_life_seconds
        if half_life is None:
            return np.ones(len(times))
        weights: FloatArray = np.exp2(sign * (times - self._first) / (half_life * float(MICROSECONDS)))
        return weights

    def _to_sums(self, table: Mapping[str, Any], last: IdArray) -> Sums:
        labels = range(len(self._counter.labels))
        counts = np.stack([table[f"count{j}"] for j in labels], 1)
        sums = np.stack([table[f"sum{j}"] for j in labels], 1)
        return Sums(table["n"], counts, np.where(counts == 0, 0.0, sums), last)

    def _read(self, query: str) -> Iterator[dict[str, Any]]:
        """Yield batches of the result of a query, by column."""
        for batch in self._connection.sql(query).to_arrow_reader(BATCH_ROWS):
            yield {name: batch.column(name).to_numpy() for name in batch.schema.names}

    def _all(self, query: str) -> dict[str, Any]:
        table = self._connection.sql(query).to_arrow_table()
        return {name: table[name].to_numpy() for name in table.column_names}


class _BaseSums:
    """Sums over the events of all keys in ranges of time.

    Args:
        times: times of events, ascending.
        sums: sums over the events at each time.
    """

    def __init__(self, times: IdArray, sums: Sums) -> None:
        self._times = times
        self._count, self._label_counts, self._label_sums = (
            np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
            for values in (sums.count, sums.label_counts, sums.label_sums)
        )

    def between(self, low: IdArray, until: IdArray) -> Sums:
        """Return the sums over the events from ``low`` [n] (inclusive) to ``until`` [n] (exclusive)."""
        start, stop = np.searchsorted(self._times, low), np.searchsorted(self._times, until)
        counts = self._label_counts[stop] - self._label_counts[start]
        sums = np.where(counts == 0, 0.0, self._label_sums[stop] - self._label_sums[start])
        return Sums(self._count[stop] - self._count[start], counts, sums, until)
