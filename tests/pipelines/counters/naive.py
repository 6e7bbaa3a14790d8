"""Counters and histories by a loop over all pairs of impressions: the definition that the tests compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ranking.schema import Counter, History, PooledFeature, Schema

EPOCH = datetime(1970, 1, 1)

Row = dict[str, Any]
"""An impression: ``time`` in microseconds, the columns of its features, and a label per task (None without one)."""


class Naive:
    """The impressions of a log and its time zone."""

    def __init__(self, schema: Schema, rows: Sequence[Row], zone: str | None) -> None:
        self.schema, self.rows, self.zone = schema, rows, zone
        self.lists = {feature.name for feature in schema.inputs if isinstance(feature, PooledFeature)}

    def local(self, time: int) -> datetime:
        moment = EPOCH + timedelta(microseconds=time)
        if self.zone is None:
            return moment
        return moment.replace(tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo(self.zone)).replace(tzinfo=None)

    def is_known(self, entry: Counter | History, event: Row, now: int) -> bool:
        if entry.delay_seconds is None:
            return self.local(event["time"]).date() < self.local(now).date()
        return event["time"] + entry.delay_seconds * 1_000_000 < now

    def bucket(self, counter: Counter, time: int) -> int:
        return (self.local(time) - EPOCH) // timedelta(seconds=counter.bucket_seconds)

    def keys(self, counter: Counter, row: Row) -> set[tuple[Any, ...]]:
        keys: list[tuple[Any, ...]] = [()]
        for name in counter.of:
            values = row[name] or [] if name in self.lists else [row[name]]
            keys = [(*key, value) for key in keys for value in values if value is not None]
        return set(keys)

    def values(self, counter: Counter, row: Row, now: int, *, everything_known: bool = False) -> list[float | None]:
        """Return the values of the counter's features for an impression at the time ``now``."""
        events = [e for e in self.rows if everything_known or self.is_known(counter, e, now)]
        if counter.buckets is not None:
            current = self.bucket(counter, now)
            events = [e for e in events if current - counter.buckets < self.bucket(counter, e["time"]) <= current]
        weights = [1.0] * len(events)
        if counter.half_life_seconds is not None:
            weights = [math.pow(2, -(now - e["time"]) / 1e6 / counter.half_life_seconds) for e in events]
        matches = [len(self.keys(counter, row) & self.keys(counter, event)) for event in events]
        rates: list[float | None] = []
        for label in counter.labels:
            labeled = [
                (w, m, e[label]) for w, m, e in zip(weights, matches, events, strict=True) if e[label] is not None
            ]
            if not labeled:
                rates.append(None)
                continue
            base = sum(w * value for w, _, value in labeled) / sum(w for w, _, _ in labeled)
            total, count = sum(w * m * value for w, m, value in labeled), sum(w * m for w, m, _ in labeled)
            rates.append((total + counter.prior * base) / (count + counter.prior))
        own = [e["time"] for m, e in zip(matches, events, strict=True) if m]
        age = None if not own else (now - max(own)) / 1e6
        return [*rates, sum(w * m for w, m in zip(weights, matches, strict=True)), age]

    def history(self, history: History, row: Row, now: int, *, everything_known: bool = False) -> list[Any] | None:
        """Return the ids of a history for an impression at the time ``now``; ties are in the order of the rows."""
        events = [
            event
            for event in sorted(self.rows, key=lambda event: event["time"])
            if (everything_known or self.is_known(history, event, now))
            and event["user_id"] == row["user_id"] is not None
            and event[history.label] == history.value
            and event[history.of] is not None
        ]
        return [event[history.of] for event in events][-history.max_length :] or None
