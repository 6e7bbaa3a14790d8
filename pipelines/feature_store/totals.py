"""Totals over all keys of each counter's sums. They show whether the sums of users, items and keys are complete.

The sums over all impressions, which the features need, do not show that: an impression can have several keys, or
none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.feature_store.counter_store import CounterStore
from ranking.counters.combine import Records, combine, within_window
from ranking.counters.stored_sums import decode_records, decode_value, definition, encode_records, encode_value
from ranking.counters.values import MICROSECONDS, decay
from ranking.schema import Counter


class Totals:
    """Total of each counter, as one record per bucket of its window; those of other counters are kept.

    Args:
        value: value in the store; None for no counters.
    """

    def __init__(self, value: bytes | None = None) -> None:
        self._sections: dict[int, bytes] = {}
        if value is not None:
            self._sections.update(decode_value(value))

    @classmethod
    def read(cls, store: CounterStore) -> Totals:
        """Read those of a store; those of an earlier version of this format are empty.

        Raises:
            redis.RedisError: the store cannot be reached.
            ValueError: the value cannot be decoded.
        """
        value: Any = store.client.get(store.totals)
        return cls(value)

    def encode(self) -> bytes:
        """Return the value in the store."""
        return encode_value(self._sections.items())

    def records(self, counter: Counter) -> Records:
        """Return the total of a counter."""
        return decode_records(counter, self._sections.get(definition(counter), b""))

    def add(self, counter: Counter, records: Records) -> None:
        """Add the sums of keys."""
        keys = np.append(self.records(counter), records)
        keys["root"] = keys["key"] = 0
        self._sections[definition(counter)] = encode_records(counter, combine(counter, keys)).tobytes()

    def prune(self, counter: Counter, until: int, zone: str | None) -> None:
        """Remove what is before the window of a counter at a time in microseconds."""
        records = within_window(counter, self.records(counter), until, zone)
        self._sections[definition(counter)] = encode_records(counter, records).tobytes()

    def subtract(self, counter: Counter, records: Records) -> None:
        """Subtract the sums of keys."""
        negative = records.copy()
        for name in ("count", "label_counts", "label_sums"):
            negative[name] *= -1
        self.add(counter, negative)


def impressions(counter: Counter, records: Records, until: int) -> float:
    """Return the number of impressions in records, weighted with the half-life of a counter at a time."""
    return float((records["count"] * decay((until - records["last"]) / MICROSECONDS, counter)).sum())
