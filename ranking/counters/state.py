"""Sums of all keys at the end of a log, in arrays that processes share.

NAME/keys.npy, starts.npy   index from keys to rows, see ``lookup.id_index``; with a window, from keys and buckets
NAME/rows.npy               one record of ``row_type`` per key; with a window, one per key and bucket
NAME/base.npy               the same sums over all keys: one record, or one per bucket
meta.json                   ``until``: time of the last impression in microseconds; ``zone``: time zone of the log
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.counters.keys import NO_KEY, CounterKeys
from ranking.counters.values import MICROSECONDS, NEVER, Sums, counter_values, decay
from ranking.encoding.vocabulary import FloatArray, IdArray, mix_hashes
from ranking.lookup.id_index import NOT_FOUND, IdIndex, write_id_index
from ranking.lookup.npy import ReadFile, map_file, open_array
from ranking.regular_files import read_regular
from ranking.schema import Counter

META = "meta.json"


def row_type(counter: Counter) -> np.dtype[Any]:
    """Return the record type of a counter's sums.

    ``key`` and ``root``: the key and the hash by which a store groups it. ``bucket``: number of the bucket of the
    window, else 0. ``last``: time of the last impression in microseconds; sums with a half-life are as of this time.
    """
    labels = (len(counter.labels),)
    sums = [("count", "<f8"), ("label_counts", "<f8", labels), ("label_sums", "<f8", labels)]
    return np.dtype([("key", "<i8"), ("root", "<i8"), ("bucket", "<i8"), ("last", "<i8"), *sums])


@dataclass(frozen=True)
class StateClock:
    """Time of a state.

    Attributes:
        until: time of the last impression in microseconds since 1970; UTC, or local time if the log has no time zone.
        zone: time zone of the log's time column; None if it has none.
    """

    until: int
    zone: str | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the time of a state.

        Raises:
            OSError, ValueError, LookupError: the file cannot be read or is not that of a state.
        """
        meta = json.loads(read_regular(folder / META))
        return cls(int(meta["until"]), meta["zone"])

    def write(self, folder: Path) -> None:
        """Write the time of a state."""
        (folder / META).write_text(json.dumps(vars(self)) + "\n")


def bucket_numbers(counter: Counter, times: IdArray, zone: str | None) -> IdArray:
    """Return the bucket of each time [n] int64: days or hours since 1970 in the time zone of the log.

    Args:
        counter: a counter with a window.
        times: microseconds [n] int64, see ``StateClock``.
        zone: time zone of the log.
    """
    return local_times(times, zone) // int(counter.bucket_seconds * MICROSECONDS)


def local_times(times: IdArray, zone: str | None) -> IdArray:
    """Return times [n] as microseconds [n] of the local time in a time zone, unchanged without one."""
    if zone is None:
        return times
    local: IdArray = pc.local_timestamp(pa.array(times, pa.timestamp("us", zone))).cast(pa.int64()).to_numpy()
    return local


class CounterState:
    """Sums of all keys of one counter.

    Args:
        counter: the counter.
        index: index from keys (with a window: from the mix of key and bucket) to rows.
        rows: sums of each key, of type ``row_type`` [rows].
        base: the same sums over all keys; one row, or one per bucket.
        zone: time zone of the log.
    """

    def __init__(
        self, counter: Counter, index: IdIndex, rows: npt.NDArray[Any], base: npt.NDArray[Any], zone: str | None
    ) -> None:
        self.counter, self.rows, self.base, self._index, self._zone = counter, rows, base, index, zone

    @classmethod
    def open(cls, folder: Path, counter: Counter, zone: str | None, read_file: ReadFile = map_file) -> Self:
        """Open the state of one counter in the folder of all states.

        Raises:
            OSError, ValueError: the files are not those of this counter.
        """
        path = folder / counter.name
        index = IdIndex.open(path, pa.int64(), read_file)
        rows = open_array(path / "rows.npy", row_type(counter), read_file)
        if len(rows) != len(index):
            raise ValueError(f"{counter.name}/rows.npy holds {len(rows)} rows, not {len(index)}")
        base = open_array(path / "base.npy", row_type(counter), read_file)
        return cls(counter, index, rows, base, zone)

    def values(self, keys: CounterKeys, now: IdArray) -> FloatArray:
        """Return the values of the counter's features.

        Args:
            keys: keys of some rows.
            now: time of each row in microseconds [rows] int64.

        Returns:
            Values [rows, ``counter.columns``] float64; NaN is null.
        """
        sums = self.sums(keys.keys, now[keys.rows]).pooled(keys.rows, len(now))
        return counter_values(self.counter, sums, self.base_sums(now), now)

    def sums(self, keys: IdArray, now: IdArray) -> Sums:
        """Return the sums of each key [n] at its time [n], all 0 for an unknown key."""
        if self.counter.buckets is None:
            return self._weighted(self.rows, self._index.rows_from_values(keys), now)
        current = bucket_numbers(self.counter, now, self._zone)
        rows = np.repeat(np.arange(len(keys)), self.counter.buckets)
        buckets = (current[:, None] - np.arange(self.counter.buckets)).ravel()
        found = self._index.rows_from_values(bucket_keys(keys[rows], buckets))
        return self._weighted(self.rows, found, now[rows]).pooled(rows, len(keys))

    def base_sums(self, now: IdArray) -> Sums:
        """Return the sums over all keys at each time [n]."""
        if self.counter.buckets is None:
            return self._weighted(self.base, np.full(len(now), 0 if len(self.base) else NOT_FOUND, np.int64), now)
        current = bucket_numbers(self.counter, now, self._zone)
        rows, positions = [], []
        for position, bucket in enumerate(self.base["bucket"].tolist()):
            matching = np.flatnonzero((bucket <= current) & (bucket > current - self.counter.buckets))
            rows.append(matching)
            positions.append(np.full(len(matching), position, np.int64))
        if not rows:
            return _zeros(len(now), len(self.counter.labels))
        all_rows = np.concatenate(rows)
        return self._weighted(self.base, np.concatenate(positions), now[all_rows]).pooled(all_rows, len(now))

    def _weighted(self, table: npt.NDArray[Any], rows: IdArray, now: IdArray) -> Sums:
        """Return the sums in these rows [n] of a table, weighted by their age; ``NOT_FOUND`` gives 0."""
        known = rows != NOT_FOUND
        if not len(table):
            return _zeros(len(rows), len(self.counter.labels))
        records = table.take(np.where(known, rows, 0))
        weights = decay((now - records["last"]) / MICROSECONDS, self.counter) * known
        last = np.where(known, records["last"], NEVER)
        return Sums(records["count"], records["label_counts"], records["label_sums"], last).weighted(weights)


def bucket_keys(keys: IdArray, buckets: IdArray) -> IdArray:
    """Return the key of each key [n] and bucket [n] in the index of a counter with a window."""
    return mix_hashes([keys, buckets + 2**40])  # An offset, because hash 0 means null and buckets may be negative.


def write_counter_state(folder: Path, counter: Counter, rows: npt.NDArray[Any], base: npt.NDArray[Any]) -> None:
    """Write the sums of one counter to a new folder ``folder/NAME``.

    Args:
        folder: folder of all states.
        counter: the counter.
        rows: sums per key (with a window: per key and bucket), of type ``row_type``.
        base: the same sums over all keys: one row, one per bucket, or none without impressions.
    """
    path = folder / counter.name
    path.mkdir(parents=True)
    rows = rows[rows["key"] != NO_KEY]
    keys = rows["key"] if counter.buckets is None else bucket_keys(rows["key"], rows["bucket"])
    order = write_id_index(pa.array(keys), path)
    np.save(path / "rows.npy", rows[order])
    np.save(path / "base.npy", base)


def open_counter_states(
    folder: Path, counters: tuple[Counter, ...], read_file: ReadFile = map_file
) -> Mapping[str, CounterState]:
    """Open the states of counters by name.

    Raises:
        OSError, ValueError, LookupError: the files are not those of these counters.
    """
    zone = StateClock.read(folder).zone if counters else None
    return {counter.name: CounterState.open(folder, counter, zone, read_file) for counter in counters}


def _zeros(rows: int, labels: int) -> Sums:
    return Sums(np.zeros(rows), np.zeros((rows, labels)), np.zeros((rows, labels)), np.full(rows, NEVER, np.int64))
