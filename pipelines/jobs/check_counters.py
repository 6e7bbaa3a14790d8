"""``ranker counters check``: compares the sums in the feature store with their totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.console import Progress
from pipelines.feature_store.counter_store import (
    CounterStore,
    load_served,
    read_state,
    require_state,
    scan_keys,
)
from pipelines.feature_store.counter_values import counters_by_root, decode_roots, distinct_counters, find_damaged
from pipelines.feature_store.totals import FIX, Totals, impressions
from ranking.counters.combine import Records, within_window
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import StateValue
from ranking.errors import OutputError
from ranking.schema import Counter, Schema

ATTEMPTS = 5
"""Number of scans, of which one must end before the counters change."""
TOLERANCE = 1e-6
"""Largest relative difference that is due to rounding."""


def check_counters(path: Path, url: str, model: str | None, prefix: str) -> dict[str, Any]:
    """Compare the sums of all users, items and keys with their totals.

    Args:
        path: the repository; the counters are those of the current version.
        url: address of the store, see ``ranking.artifacts.store_address``.
        model: name of the model; default: the default model of the repository.
        prefix: prefix of the keys.

    Returns:
        The address, the time of the state, the number of values, and of each counter the number of ``impressions`` by
        the totals, weighted with its half-life, and how many of them are ``missing`` in the sums; below 0: too many.

    Raises:
        BundleError: the model cannot be read.
        OutputError: the store cannot be reached, holds no counters of this model, or these change all the time.
        UsageError: the address has an unsupported option, or the model has no counters.
    """
    served = load_served(path, model)
    store = CounterStore(url, prefix, served.name)
    return {"to": store.address, **compare_sums(store, served.ranker.schema, served.clock)}


def compare_sums(store: CounterStore, schema: Schema, clock: StateClock) -> dict[str, Any]:
    """Compare the sums in a store with their totals, see ``check_counters``; ``clock`` has their time zone."""
    hint = "fix the store, then try again"
    for _ in range(ATTEMPTS):
        state = require_state(store, schema.counters, hint)
        with store.errors(hint):
            totals = Totals.read(store)
            values, sums = _sum_values(store, schema, state, clock.zone)
            unchanged = Totals.read(store).encode() == totals.encode()
        if unchanged and read_state(store, store.state, hint) == state:
            break
    else:
        raise OutputError(f"{store.address}: the counters change all the time; check them when nothing adds to them")
    counters = {}
    for counter in distinct_counters(schema):
        totals.prune(counter, state.until, clock.zone)
        expected = impressions(counter, totals.records(counter), state.until)
        missing = expected - sums[counter.name]
        missing = 0.0 if abs(missing) <= TOLERANCE * max(1.0, expected) else missing
        counters[counter.name] = {"impressions": round(expected, 3), "missing": round(missing, 3)}
    return {"counters_as_of": replace(clock, until=state.until).text, "values": values, "counters": counters}


def describe_missing(result: dict[str, Any]) -> str | None:
    """Return a message about sums that differ from their totals; None if all are equal."""
    wrong = {name: counter["missing"] for name, counter in result["counters"].items() if counter["missing"]}
    if not wrong:
        return None
    name, missing = max(wrong.items(), key=lambda item: abs(item[1]))
    others = "another counter differs" if len(wrong) == 2 else f"{len(wrong) - 1} other counters differ"
    more = f", and {others}" if len(wrong) > 1 else ""
    verb = "lacks" if missing > 0 else "has"
    surplus = "" if missing > 0 else " too many"
    number = f"{abs(missing):,.1f}".removesuffix(".0")
    return f"{verb} {number} impressions of counter {name}{surplus}{more}; {FIX}"


def _sum_values(
    store: CounterStore, schema: Schema, state: StateValue, zone: str | None
) -> tuple[int, dict[str, float]]:
    """Return the number of values, and the impressions in those of each counter."""
    groups, seen = counters_by_root(schema), set[int]()
    sums = {counter.name: 0.0 for counter in distinct_counters(schema)}
    progress = Progress("checking counters", unit="values")
    for keys in scan_keys(store):
        by_root: dict[str, list[str]] = {}
        for key in keys:
            value = store.parse_key(key)
            if value is not None and value[0] == state.generation and hash(key) not in seen:
                by_root.setdefault(value[1], []).append(key)
                seen.add(hash(key))
        for root, counters in groups.items():
            for counter, records in _read(store, counters, by_root.get(root, [])):
                within = within_window(counter, records, state.until, zone)
                sums[counter.name] += impressions(counter, within, state.until)
        progress.advance(len(keys))
    progress.close(summary=False)
    return len(seen), sums


def _read(store: CounterStore, counters: Sequence[Counter], keys: list[str]) -> Iterator[tuple[Counter, Records]]:
    """Yield the records of each counter; those of damaged values are left out."""
    if not keys:
        return
    values: Any = store.client.mget(keys)
    try:
        records = decode_roots(counters, np.arange(len(values)), values)
    except ValueError:
        values = [value for value, bad in zip(values, find_damaged(counters, values), strict=True) if not bad]
        records = decode_roots(counters, np.arange(len(values)), values)
    yield from ((counter, records[counter.name]) for counter in counters)
