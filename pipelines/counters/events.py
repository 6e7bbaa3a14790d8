"""Events: the usable impressions of a whole log as DuckDB reads them, with keys in place of ids.

Columns of the Parquet file:

row             position of the impression in the log, over all files
t               time in microseconds, see ``StateClock``
day             start of the day of the impression (only if an entry has as_of = "day")
user, item      hash of the user id and of the item id (only if they are part of a key)
key_I           key of counter I, or the list of its keys if a part of the key is a list; null without a key
bucket_I        number of the bucket of counter I with a window, see ``bucket_numbers``
from_I          start of the window of counter I
label_J         label of task J before its transform; null where it is null or masked
id_K            hash of the id for history K
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.console import Progress
from pipelines.data.log_schema import masked_labels
from pipelines.data.parquet import LogFile
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.row_group_writer import RowGroupWriter
from ranking.counters.features import to_microseconds
from ranking.counters.keys import NO_KEY, CounterKeys, PartHashes, counter_keys
from ranking.counters.state import bucket_numbers, local_times
from ranking.encoding.columns import read_column
from ranking.encoding.vocabulary import IdArray, hash_column, stable_hash
from ranking.schema import ID_OWNERS, Counter, History, Schema, Task
from ranking.schema.counters import DAY

MICROSECONDS = 1_000_000
"""Microseconds per second."""
GROUP_ROWS = 262_144
"""Rows of a row group of the events."""
MAX_CACHED_HASHES = 1_000_000
"""Maximum number of ids whose hashes are remembered between the chunks of a log."""


class HashCache:
    """Hashes of ids, remembered because the chunks of a log repeat them."""

    def __init__(self) -> None:
        self._hashes: dict[int | str, int] = {}

    def __call__(self, column: pa.Array) -> IdArray:
        """Return the same as ``hash_column``."""
        if len(self._hashes) > MAX_CACHED_HASHES:
            self._hashes.clear()
        return hash_column(column, self._hash)

    def _hash(self, value: int | str) -> int:
        known = self._hashes.get(value)
        if known is None:
            known = self._hashes[value] = stable_hash(value)
        return known


@dataclass(frozen=True)
class FileRows:
    """Rows of one file of a log.

    Attributes:
        file: the file.
        digest: its digest.
        first: position of its first row in the log.
        groups: rows of each row group.
    """

    file: LogFile
    digest: str
    first: int
    groups: list[int]


@dataclass(frozen=True)
class Events:
    """Events of a log.

    Attributes:
        file: Parquet file of the events; it does not exist without events.
        log: rows of each file of the log.
        zone: time zone of the log's time column; None if it has none.
        span: times of the first and last event in microseconds; None without events.
        ids: id of each hash that the histories contain, int64 or string.
    """

    file: Path
    log: list[FileRows]
    zone: str | None
    span: tuple[int, int] | None
    ids: dict[str, dict[int, int | str]]

    @property
    def rows(self) -> int:
        """Number of rows of the log."""
        return sum(sum(file.groups) for file in self.log)


def has_list(counter: Counter, schema: Schema) -> bool:
    """Return whether a part of a counter's key is a list."""
    return any(feature.name in counter.of for feature in schema.bags)


def known_until(entry: Counter | History) -> str:
    """Return the time before which events are known to an impression, as SQL on the columns of events."""
    return "day" if entry.delay_seconds is None else f"t - {entry.delay_seconds * MICROSECONDS}"


def label_tasks(schema: Schema) -> list[Task]:
    """Return the tasks whose labels counters and histories use."""
    names = {name for counter in schema.counters for name in counter.labels}
    names |= {history.label for history in schema.histories}
    return [task for task in schema.tasks if task.name in names]


def extract_events(reader: LogReader, schema: Schema, folder: Path) -> Events:
    """Read a whole log once and write its events.

    Args:
        reader: the log.
        schema: schema with counters and histories.
        folder: existing folder for the file of events.

    Raises:
        LogError: the log cannot be read.
    """
    log = _log_rows(reader.files)
    first = {rows.file.display_name: rows.first for rows in log}
    extractor = _Extractor(schema, _zone(log, schema.columns.time))
    file = folder / "events.parquet"
    progress = Progress("counters: reading the log", unit="rows")
    with RowGroupWriter(file, GROUP_ROWS, use_dictionary=False) as writer:
        for chunk in reader.with_schema(schema.logged).scan():
            progress.advance(chunk.rows.num_rows)
            if chunk.rows.num_rows:
                with as_log_error(chunk.file):
                    writer.write(extractor.events(chunk.rows, first[chunk.file] + chunk.positions))
    progress.close()
    return Events(file, log, extractor.zone, extractor.span, extractor.ids)


def _log_rows(files: list[LogFile]) -> list[FileRows]:
    """Return the rows of each file of a log."""
    log: list[FileRows] = []
    first = 0
    for file in files:
        try:
            with file.open() as parquet:
                log.append(FileRows(file, parquet.digest, first, parquet.row_group_sizes))
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None
        first += sum(log[-1].groups)
    return log


def _zone(log: list[FileRows], column: str) -> str | None:
    """Return the time zone of a time column in the first file of a log that has the column."""
    for rows in log:
        with rows.file.open() as parquet:
            if column in parquet.schema.names:
                zone: str | None = getattr(parquet.schema.field(column).type, "tz", None)
                return zone
    return None


class _Extractor:
    """Converts completed rows to events."""

    def __init__(self, schema: Schema, zone: str | None) -> None:
        self._schema, self.zone = schema, zone
        self.span: tuple[int, int] | None = None
        self.ids: dict[str, dict[int, int | str]] = {history.name: {} for history in schema.histories}
        self._hash_ids = HashCache()

    def events(self, rows: pa.Table, positions: IdArray) -> pa.Table:
        """Return the events of some rows at these positions [rows] in the log."""
        schema = self._schema
        times = to_microseconds(rows[schema.columns.time].combine_chunks(), 0)
        low, high = int(times.min()), int(times.max())
        self.span = (low, high) if self.span is None else (min(self.span[0], low), max(self.span[1], high))
        columns: dict[str, Any] = {"row": positions, "t": times}
        if any(entry.delay_seconds is None for entry in (*schema.counters, *schema.histories)):
            columns["day"] = self._start(local_times(times, self.zone) // (DAY * MICROSECONDS), DAY)
        hashes = PartHashes.from_table(rows, schema, self._hash_ids)
        for owner in ID_OWNERS:
            feature = schema.key_feature(owner)
            if feature is not None and feature.name in hashes.singles:
                columns[owner] = hashes.singles[feature.name]
        for i, counter in enumerate(schema.counters):
            columns[f"key_{i}"] = _key_column(counter_keys(counter, hashes), len(times), has_list(counter, schema))
            if counter.buckets is not None:
                buckets = bucket_numbers(counter, times, self.zone)
                columns[f"bucket_{i}"] = buckets
                columns[f"from_{i}"] = self._start(buckets - counter.buckets + 1, counter.bucket_seconds)
        for task in label_tasks(schema):
            columns[f"label_{schema.tasks.index(task)}"] = masked_labels(rows, task)
        for k, history in enumerate(schema.histories):
            columns[f"id_{k}"] = self._history_ids(rows, history)
        return pa.table(columns)

    def _start(self, buckets: IdArray, seconds: int) -> IdArray:
        """Return the start of local buckets [n] of this length in microseconds [n]."""
        local = buckets * (seconds * MICROSECONDS)
        if self.zone is None:
            return local
        moments = pc.assume_timezone(
            pa.array(local, pa.timestamp("us")), self.zone, ambiguous="earliest", nonexistent="latest"
        )
        start: IdArray = moments.cast(pa.int64()).to_numpy()
        return start

    def _history_ids(self, rows: pa.Table, history: History) -> pa.Array:
        """Return the hash of the id of each row [rows] int64, and remember the ids."""
        feature = next(feature for feature in self._schema.inputs if feature.name == history.of)
        ids = read_column(rows[feature.column].combine_chunks(), feature)
        hashes = self._hash_ids(ids)
        known = self.ids[history.name]
        if not pa.types.is_null(ids.type):
            unique = ids.unique().drop_null()
            known.update(zip(self._hash_ids(unique).tolist(), unique.to_pylist(), strict=True))
        return pa.array(hashes, mask=hashes == 0)


def _key_column(keys: CounterKeys, rows: int, is_list: bool) -> pa.Array:
    """Return the key of each row, or its keys as a list; null, or a list with a null, for a row without a key."""
    if not is_list:
        values = np.zeros(rows, np.int64)
        values[keys.rows] = keys.keys
        return pa.array(values, mask=values == NO_KEY)
    lengths = np.bincount(keys.rows, minlength=rows)
    ends = np.cumsum(np.maximum(lengths, 1))
    values = np.zeros(ends[-1] if rows else 0, np.int64)
    ranks = np.arange(len(keys.rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    values[(ends - np.maximum(lengths, 1))[keys.rows] + ranks] = keys.keys
    return pa.LargeListArray.from_arrays(np.append(0, ends), pa.array(values, mask=values == NO_KEY))
