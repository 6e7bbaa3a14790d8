"""Sums of all keys at the end of a log, in arrays that processes share.

NAME/keys.npy, starts.npy   index from keys to rows, see ``ids.index``; with a window, from keys and buckets
NAME/rows.npy               one record of ``row_type`` per key (with a window: per key and bucket), then an empty record
NAME/base.npy               the same sums over all keys: one record, or one per bucket
meta.json                   ``until`` and ``since``: times of the last and first impression in microseconds; ``zone``:
                            time zone of the log
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.counters.keys import NO_KEY, CounterKeys
from ranking.counters.values import MICROSECONDS, NEVER, Sums, counter_values, decay
from ranking.encoding.vocabulary import FloatArray, IdArray, mix_hashes
from ranking.ids.index import IdIndex, write_id_index
from ranking.ids.npy import ReadFile, map_file, open_array
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
        since: time of the first impression, like ``until``; None if it is unknown.
    """

    until: int
    zone: str | None
    since: int | None = None

    @property
    def text(self) -> str:
        """``until`` in ISO 8601: with an offset of 0 (Z), or without one if the log has no time zone."""
        return self.text_of(self.until)

    def text_of(self, time: int) -> str:
        """Return a time like ``until`` as text, see ``text``."""
        text = (datetime(1970, 1, 1) + timedelta(microseconds=time)).isoformat(timespec="seconds")
        return text + ("" if self.zone is None else "Z")

    def now(self) -> int:
        """Return the current time in microseconds: UTC, or local time if the log has no time zone."""
        return self.at(datetime.now(UTC))

    def at(self, time: datetime) -> int:
        """Return a time with a time zone in microseconds: UTC, or local time if the log has no time zone."""
        local = time.astimezone(UTC if self.zone is not None else None).replace(tzinfo=None)
        return (local - datetime(1970, 1, 1)) // timedelta(microseconds=1)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the time of a state.

        Raises:
            OSError, ValueError, LookupError: the file cannot be read or is not that of a state.
        """
        meta = json.loads(read_regular(folder / META))
        since = meta.get("since")
        return cls(int(meta["until"]), meta["zone"], None if since is None else int(since))

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


class SumSource(Protocol):
    """Sums of one counter."""

    @property
    def base(self) -> npt.NDArray[Any]:
        """Sums over all keys of type ``row_type``: one record, or one per bucket."""
        ...

    def find(self, keys: IdArray, buckets: IdArray | None) -> npt.NDArray[Any]:
        """Return the record of each key [n], and of its bucket [n] with a window; an empty one for an unknown key."""
        ...


class CounterState:
    """Sums of all keys of one counter.

    Args:
        counter: the counter.
        index: index from keys (with a window: from the mix of key and bucket) to rows.
        rows: sums of each key, then those of an unknown key, of type ``row_type`` [rows + 1].
        base: the same sums over all keys; one row, or one per bucket.
        zone: time zone of the log.

    Attributes:
        columns: names of the counter's features.
    """

    def __init__(
        self, counter: Counter, index: IdIndex, rows: npt.NDArray[Any], base: npt.NDArray[Any], zone: str | None
    ) -> None:
        self.counter, self.base, self.zone, self._records, self._index = counter, base, zone, rows, index
        self.columns = counter.columns

    @property
    def rows(self) -> npt.NDArray[Any]:
        """Sums of each key, of type ``row_type`` [rows]."""
        return self._records[:-1]

    @classmethod
    def open(cls, folder: Path, counter: Counter, zone: str | None, read_file: ReadFile = map_file) -> Self:
        """Open the state of one counter in the folder of all states.

        Raises:
            OSError, ValueError: the files are not those of this counter.
        """
        path = folder / counter.name
        index = IdIndex.open(path, pa.int64(), read_file)
        rows = open_array(path / "rows.npy", row_type(counter), read_file)
        if len(rows) != len(index) + 1:
            raise ValueError(f"{counter.name}/rows.npy holds {len(rows)} rows, not {len(index) + 1}")
        base = open_array(path / "base.npy", row_type(counter), read_file)
        return cls(counter, index, rows, base, zone)

    def find(self, keys: IdArray, buckets: IdArray | None) -> npt.NDArray[Any]:
        """Return the record of each key [n], and of its bucket with a window; an empty one for an unknown key."""
        keys = keys if buckets is None else bucket_keys(keys, buckets)
        return self._records.take(self._index.rows_from_values(keys))

    def values(self, keys: CounterKeys, now: IdArray, source: SumSource | None = None) -> FloatArray:
        """Return the values of the counter's features.

        Args:
            keys: keys of some rows.
            now: time of each row in microseconds [rows] int64.
            source: sums to use instead of this state.

        Returns:
            Values [rows, ``counter.columns``] float64; NaN is null.
        """
        source = self if source is None else source
        sums = self._sums(source, keys.keys, now if keys.one_per_row else now[keys.rows])
        if not keys.one_per_row:
            sums = sums.pooled(keys.rows, len(now))
        return counter_values(self.counter, sums, base_sums(self.counter, source.base, now, self.zone), now)

    def _sums(self, source: SumSource, keys: IdArray, now: IdArray) -> Sums:
        """Return the sums of each key [n] at its time [n], all 0 for an unknown key."""
        if self.counter.buckets is None:
            return weighted(self.counter, source.find(keys, None), now)
        current = bucket_numbers(self.counter, now, self.zone)
        rows = np.repeat(np.arange(len(keys)), self.counter.buckets)
        buckets = (current[:, None] - np.arange(self.counter.buckets)).ravel()
        return weighted(self.counter, source.find(keys[rows], buckets), now[rows]).pooled(rows, len(keys))


def weighted(counter: Counter, records: npt.NDArray[Any], now: IdArray) -> Sums:
    """Return the sums in records of ``row_type`` [n], weighted by their age at each time [n]."""
    sums = Sums(records["count"], records["label_counts"], records["label_sums"], records["last"])
    if counter.half_life_seconds is None:
        return sums
    # The age of ``NEVER`` would overflow.
    return sums.weighted(decay((now - np.where(sums.last == NEVER, now, sums.last)) / MICROSECONDS, counter))


def base_sums(counter: Counter, base: npt.NDArray[Any], now: IdArray, zone: str | None) -> Sums:
    """Return the sums over all keys, from which ``counter_values`` computes means.

    Without a window this is a single row, because a half-life does not change means; else one row per time [n].

    Args:
        counter: the counter.
        base: records of ``row_type``, one per bucket.
        now: microseconds [n] int64, see ``StateClock``.
        zone: time zone of the log.
    """
    if counter.buckets is None:
        base = base[:1] if len(base) else no_impressions(counter, 1)
        return Sums(base["count"], base["label_counts"], base["label_sums"], base["last"])
    current, rows = np.unique(bucket_numbers(counter, now, zone), return_inverse=True)
    ages = current[:, None] - base["bucket"]
    known = ((ages >= 0) & (ages < counter.buckets)).astype(np.float64)
    last = np.where(known, base["last"], NEVER).max(1, initial=NEVER)
    sums = [known @ base[name] for name in ("count", "label_counts", "label_sums")]
    return Sums(sums[0][rows], sums[1][rows], sums[2][rows], last[rows])


def no_impressions(counter: Counter, rows: int) -> npt.NDArray[Any]:
    """Return records of ``row_type`` of keys without impressions."""
    records = np.zeros(rows, row_type(counter))
    records["last"] = NEVER
    return records


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
    np.save(path / "rows.npy", np.append(rows[order], no_impressions(counter, 1)))
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
