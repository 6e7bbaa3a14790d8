"""Totals over all keys of each counter's sums. They show whether the sums of users, items and keys are complete.

The sums over all impressions, which the features need, do not show that: an impression can have several keys, or
none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pipelines.feature_store.counter_store import CounterStore
from ranking.counters.combine import Records, combine, within_window
from ranking.counters.stored_sums import decode_records, decode_value, definition, encode_records, encode_value
from ranking.counters.values import MICROSECONDS, decay
from ranking.errors import OutputError
from ranking.schema import Counter

FIX = "run 'ranker counters load'; then 'follow' adds what came since, or 'apply' without it"
"""Fix that makes sums complete; the end of messages."""


class Totals:
    """Total of each counter, as one record per bucket of its window; those of other counters are kept.

    Args:
        store: the store.
        value: value in the store; None for no counters.

    Raises:
        OutputError: the value is damaged.
    """

    def __init__(self, store: CounterStore, value: bytes | None = None) -> None:
        self._store = store
        with self._errors():
            self._sections = {} if value is None else dict(decode_value(value))

    @classmethod
    def read(cls, store: CounterStore) -> Totals:
        """Read those of a store; empty if it has none.

        Raises:
            redis.RedisError: the store cannot be reached.
            OutputError: the value is damaged.
        """
        value: Any = store.client.get(store.totals)
        return cls(store, value)

    def encode(self) -> bytes:
        """Return the value in the store."""
        return encode_value(self._sections.items())

    def copy(self) -> Totals:
        """Return a copy."""
        return Totals(self._store, self.encode())

    def records(self, counter: Counter) -> Records:
        """Return the total of a counter.

        Raises:
            OutputError: it is damaged.
        """
        with self._errors():
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

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise OutputError(f"{self._store.address}: {self._store.totals} is damaged ({error}); {FIX}") from None


def impressions(counter: Counter, records: Records, until: int) -> float:
    """Return the number of impressions in records, weighted with the half-life of a counter at a time.

    Records whose number is NaN or infinite count as none.
    """
    counts = np.nan_to_num(records["count"], nan=0.0, posinf=0.0, neginf=0.0)
    return float((counts * decay((until - records["last"]) / MICROSECONDS, counter)).sum())
