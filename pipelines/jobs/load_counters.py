"""``ranker counters load``: writes the counters of a published model to the feature store of the service.

The values of a load have keys of their own, so that a load changes nothing until its last command. Several loads at the
same time, and other commands that write, do not disturb each other.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import redis

from pipelines.console import Progress, print_status
from pipelines.feature_store.bundle_sums import BundleSums
from pipelines.feature_store.client import STORE_ERRORS
from pipelines.feature_store.counter_store import (
    BATCH_SIZE,
    CounterStore,
    has_counters,
    load_served,
    read_state,
    scan_keys,
)
from pipelines.feature_store.counter_values import counters_by_root, encode_roots, with_roots
from pipelines.feature_store.forgotten_users import forgotten_users
from pipelines.feature_store.totals import Totals
from pipelines.jobs.counter_loss import FLAG, Coverage, require_coverage
from ranking.artifacts.feature_store_keys import counter_key
from ranking.counters.combine import combine
from ranking.counters.features import CounterFeatures
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import StateValue, definition, encode_records, encode_value
from ranking.errors import OutputError, QualityGateError

ABANDONED_SECONDS = 600
"""Seconds without a command after which a load counts as ended, so that another load removes its values."""


def load_counters(
    path: Path, url: str, model: str | None, prefix: str, *, allow_poorer_counters: bool = False
) -> dict[str, Any]:
    """Write the sums of all counters, grouped by user, item or key, then remove those of earlier loads.

    Users that were forgotten later than the last impression have empty values.

    The service uses the new values together, from the last command on; until then it uses those of the load before. If
    the load fails, its values are removed.

    Args:
        path: the repository; the state is that of the current version.
        url: address of the store, see ``ranking.artifacts.store_address``.
        model: name of the model; default: the default model of the repository.
        prefix: prefix of the keys.
        allow_poorer_counters: load also if much of what was loaded before is lost, or if the sums are older.

    Returns:
        The address, the key pattern, the time of the state, and the number and bytes of values.

    Raises:
        BundleError: the model cannot be read.
        OutputError: the store cannot be reached or rejects a command, or another load, of older counters, began later
            and has finished.
        QualityGateError: the sums are older than those that were loaded before, or lack much of them.
        UsageError: the address has an unsupported option, or the model has no counters.
    """
    served = load_served(path, model)
    store = CounterStore(url, prefix, served.name)
    store.require_no_eviction()
    return load_sums(store, served.counter_features, served.clock, allow=allow_poorer_counters)


def load_sums(
    store: CounterStore, counter_features: CounterFeatures, clock: StateClock, *, allow: bool = False
) -> dict[str, Any]:
    """Write the sums of an open version to a store, see ``load_counters``; ``clock`` is their time."""
    _compare(store, counter_features, allow=allow)
    with store.errors("the counters in use are unchanged: fix the store and load again"):
        current = read_state(store, store.state)
        in_use = 0 if current is None else current.generation
        # Later than the current one although clocks differ, and not that of another load at the same time.
        generation = max(time.time_ns(), in_use + 1) + secrets.randbelow(1_000_000)
        try:
            removed = _remove(store, lambda other: other < in_use or (other > in_use and _is_abandoned(store, other)))
            written, size, totals = _write(store, counter_features, generation)
            base = {
                definition(counter): encode_records(counter, counter_features.counters[counter.name].base).tobytes()
                for counter in counter_features.schema.counters
            }
            _switch(
                store,
                StateValue(generation, clock.until, clock.until, base, clock.since),
                clock,
                counter_features,
                totals,
            )
        except BaseException:
            with suppress(OutputError, *STORE_ERRORS):
                state = read_state(store, store.state)
                if state is None or state.generation != generation:  # else only the reply was lost
                    _remove(store, lambda other: other == generation)
                store.client.delete(store.loading(generation))
            raise
    with store.errors("the new counters are in use: load them again to remove the earlier ones"):
        state = read_state(store, store.state)
        used = generation if state is None else state.generation
        removed += _remove(store, lambda other: other < used, unnamed=True)
        store.client.delete(store.loading(generation))
    result = {"to": store.address, "keys": f"{store.start}*", "counters_as_of": clock.text}
    return result | {"values": written, "bytes": size, "removed": removed}


def _write(store: CounterStore, counter_features: CounterFeatures, generation: int) -> tuple[int, int, Totals]:
    """Write all values of a generation; return their number and bytes, and the totals."""
    written, size, totals = 0, 0, Totals(store)
    progress = Progress("loading counters", unit="values")
    for root, counters in counters_by_root(counter_features.schema).items():
        sums = {}
        for counter in counters:
            sums[counter.name] = combine(counter, with_roots(root, counter_features.counters[counter.name].rows))
            totals.add(counter, sums[counter.name])
        roots = np.unique(np.concatenate([records["root"] for records in sums.values()]))
        for start in range(0, len(roots), BATCH_SIZE):
            values = {
                counter_key(store.start, generation, root, root_hash): value
                for root_hash, value in encode_roots(counters, sums, roots[start : start + BATCH_SIZE])
            }
            store.client.set(store.loading(generation), b"", ex=ABANDONED_SECONDS)
            store.client.mset(values)
            written += len(values)
            size += sum(map(len, values.values()))
            progress.advance(len(values))
    progress.close()
    return written, size, totals


def _is_abandoned(store: CounterStore, generation: int) -> bool:
    """Return whether the load of a generation that is not in use has ended."""
    return store.client.get(store.loading(generation)) is None


def _switch(
    store: CounterStore, state: StateValue, clock: StateClock, counter_features: CounterFeatures, totals: Totals
) -> None:
    """Let the service use the written values, but those of users that were forgotten later than the bundle's sums.

    Args:
        store: the store.
        state: state of the written values.
        clock: time of the bundle's sums.
        counter_features: the bundle's sums.
        totals: their totals.

    Raises:
        OutputError: another load, of older counters, began later and has finished.
    """
    bundle, user_counters = BundleSums(counter_features), counters_by_root(counter_features.schema).get("user", [])
    while True:
        with store.client.pipeline(transaction=True) as pipeline:
            pipeline.watch(store.forgotten, store.state)
            current = read_state(store, store.state)
            if current is not None and current.generation == state.generation:
                return  # the reply to the transaction was lost
            if current is not None and current.generation > state.generation:
                message = f"{store.address}: another load began later and has finished; its counters are used"
                if current.loaded_until < state.loaded_until:
                    raise OutputError(message)
                print_status(message)
                return
            forgotten = forgotten_users(store, clock)
            remaining = totals.copy()
            for counter in user_counters:
                remaining.subtract(counter, bundle.find(counter, "user", forgotten))
            pipeline.multi()
            for user in forgotten.tolist():
                pipeline.set(counter_key(store.start, state.generation, "user", user), encode_value([]))
            pipeline.set(store.state, state.encode())
            pipeline.set(store.loaded, state.encode())
            pipeline.set(store.totals, remaining.encode())
            pipeline.delete(store.positions)
            try:
                pipeline.execute()
            except redis.WatchError:
                continue
            return


def _compare(store: CounterStore, new: CounterFeatures, *, allow: bool) -> None:
    """Report what the sums of a version lack of those in the store.

    They are compared with the sums that were loaded: what was applied since then can be applied again.

    Raises:
        QualityGateError: the sums are older than those that were loaded, or lack much of them.
    """
    coverage = Coverage.of_bundle(new)
    assert coverage is not None
    coverage = replace(coverage, ids={})  # a store has no histories
    loaded = read_state(store, store.loaded)
    counted = [counter for counter in new.schema.counters if loaded is not None and definition(counter) in loaded.base]
    if loaded is None or not has_counters(loaded, counted):
        return
    old = Coverage.of_store(loaded, new.schema.counters, coverage.clock.zone)
    if coverage.clock.until < old.clock.until and not allow:
        raise QualityGateError(
            f"the version has counters until {coverage.clock.text}, but {store.address} was loaded with those until "
            f"{old.clock.text}: what came in between would be lost. Publish a newer version, or use {FLAG}; 'ranker "
            "counters follow' then adds what came since, or 'ranker counters apply' without it"
        )
    require_coverage(old, coverage, store.address, "the version", allow=allow)
    state = read_state(store, store.state)
    if state is not None and coverage.clock.until < state.until:
        live = replace(coverage.clock, until=state.until)
        print_status(
            f"the counters in {store.address} go back from {live.text} to {coverage.clock.text}: 'ranker counters "
            "follow' adds what was served since then again; without it, use 'ranker counters apply'"
        )


def _remove(store: CounterStore, is_obsolete: Callable[[int], bool], *, unnamed: bool = False) -> int:
    """Remove the values of some generations, and with ``unnamed`` those of earlier versions; return their number."""
    decisions: dict[int, bool] = {}

    def is_removed(key: str) -> bool:
        if key in store.shared_keys or key.startswith(store.loading()):
            return False
        value = store.parse_key(key)
        if value is None:
            return unnamed
        generation, _ = value
        if generation not in decisions:
            decisions[generation] = is_obsolete(generation)
        return decisions[generation]

    removed = 0
    for keys in scan_keys(store):
        if obsolete := [key for key in keys if is_removed(key)]:
            removed += int(store.client.unlink(*obsolete))
    return removed
