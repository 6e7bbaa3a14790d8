"""Addition of the sums of a counter: impressions become records, and records of one key become one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.counters.keys import PartHashes, counter_keys
from ranking.counters.state import bucket_numbers, row_type
from ranking.counters.values import MICROSECONDS, decay
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.schema import Counter

Records = npt.NDArray[Any]
"""Sums of keys, of type ``row_type``."""


def impression_records(
    counter: Counter, hashes: PartHashes, roots: IdArray, times: IdArray, labels: FloatArray, zone: str | None
) -> tuple[Records, Records]:
    """Return a record per impression and key, and a record per impression for the sums over all keys.

    Args:
        counter: the counter.
        hashes: hashes of the ids that form keys.
        roots: hash by which a store groups the keys of each row [rows]; 0: each key is its own root.
        times: time of each row in microseconds [rows] int64, see ``StateClock``.
        labels: labels of the counter [rows, labels]; NaN where unknown.
        zone: time zone of the log.
    """
    base = np.zeros(len(times), row_type(counter))
    base["last"], base["count"] = times, 1.0
    base["label_counts"] = ~np.isnan(labels)
    base["label_sums"] = np.nan_to_num(labels)
    if counter.buckets is not None:
        base["bucket"] = bucket_numbers(counter, times, zone)
    keys = counter_keys(counter, hashes)
    records = base.take(keys.rows)
    records["key"] = keys.keys
    records["root"] = roots.take(keys.rows)
    return records, base


def combine(counter: Counter, records: Records) -> Records:
    """Add the records of each root, key and bucket; sorted by root, key and bucket."""
    order = np.lexsort((records["bucket"], records["key"], records["root"]))
    records = records.take(order)
    fields = [records[name] for name in ("root", "key", "bucket")]
    changes = np.logical_or.reduce([np.diff(field) != 0 for field in fields])
    first = np.flatnonzero(np.append(True, changes)[: len(records)])
    if len(first) == len(records):
        return records
    combined: Records = records.take(first)
    combined["last"] = last = np.maximum.reduceat(records["last"], first)
    age = np.repeat(last, np.diff(np.append(first, len(records)))) - records["last"]
    weights = decay(age / MICROSECONDS, counter)
    combined["count"] = np.add.reduceat(records["count"] * weights, first)
    for name in ("label_counts", "label_sums"):
        combined[name] = np.add.reduceat(records[name] * weights[:, None], first)
    return combined


def within_window(counter: Counter, records: Records, until: int, zone: str | None) -> Records:
    """Return the records in the window of a counter at a time in microseconds; all without a window."""
    if counter.buckets is None:
        return records
    (newest,) = bucket_numbers(counter, np.array([until]), zone)
    within: Records = records[records["bucket"] > newest - counter.buckets]
    return within
