"""``ranker counters load``: writes the counters of a published model to the feature store of the service."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import redis

from pipelines.console import Progress, print_status
from pipelines.jobs.counter_loss import FLAG, Coverage, require_coverage
from pipelines.jobs.counter_store import CounterStore, load_served, read_state
from pipelines.jobs.counter_values import counters_by_root, encode_roots, with_roots
from pipelines.jobs.forgotten_users import forgotten_users
from ranking.artifacts.feature_store_keys import counter_key
from ranking.counters.combine import combine
from ranking.counters.features import DerivedFeatures
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import HEADER, StateValue, decode_value, definition, encode_records, encode_value
from ranking.errors import QualityGateError

BATCH_SIZE = 5_000
"""Number of values per command."""


def load_counters(
    path: Path, url: str, model: str | None, prefix: str, *, allow_poorer_counters: bool = False
) -> dict[str, Any]:
    """Write the sums of all counters, grouped by user, item or key, then remove those of an earlier load.

    Users that were forgotten later than the last impression have empty values.

    The service uses the new values together, from the last command on; until then it uses the sums of its bundle.

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
        OutputError: the store cannot be reached or rejects a command.
        QualityGateError: the sums are older than those that were loaded before, or lack much of them.
        UsageError: the address has an unsupported option, or the model has no counters.
    """
    name, ranker, derived = load_served(path, model)
    assert derived.clock is not None
    store, generation = CounterStore(url, prefix, name), time.time_ns()
    store.require_no_eviction()
    _compare(store, derived, allow=allow_poorer_counters)
    written = size = 0
    progress = Progress("loading counters", unit="values")
    with store.errors("the service uses the counters of its bundle: fix the store and load again"):
        for root, counters in counters_by_root(ranker.schema).items():
            sums = {
                counter.name: combine(counter, with_roots(root, derived.counters[counter.name].rows))
                for counter in counters
            }
            roots = np.unique(np.concatenate([records["root"] for records in sums.values()]))
            for start in range(0, len(roots), BATCH_SIZE):
                values = {
                    counter_key(store.start, root, root_hash): value
                    for root_hash, value in encode_roots(counters, sums, generation, roots[start : start + BATCH_SIZE])
                }
                store.client.mset(values)
                written += len(values)
                size += sum(map(len, values.values()))
                progress.advance(len(values))
        base = {
            definition(counter): encode_records(counter, derived.counters[counter.name].base).tobytes()
            for counter in ranker.schema.counters
        }
        clock = derived.clock
        _switch(store, StateValue(generation, clock.until, clock.until, base, clock.since), clock)
        removed = _remove_obsolete(store, generation)
    progress.close()
    result = {"to": store.address, "keys": f"{store.start}*", "counters_as_of": derived.clock.text}
    return result | {"values": written, "bytes": size, "removed": removed}


def _switch(store: CounterStore, state: StateValue, clock: StateClock) -> None:
    """Let the service use the written values, but those of users that were forgotten later than the bundle's sums."""
    while True:
        with store.client.pipeline(transaction=True) as pipeline:
            pipeline.watch(store.forgotten)
            forgotten = forgotten_users(store, clock)
            pipeline.multi()
            for user in forgotten.tolist():
                pipeline.set(counter_key(store.start, "user", user), encode_value(state.generation, []))
            pipeline.set(store.state, state.encode())
            pipeline.set(store.loaded, state.encode())
            pipeline.delete(store.applied)
            try:
                pipeline.execute()
            except redis.WatchError:
                continue
            return


def _compare(store: CounterStore, new: DerivedFeatures, *, allow: bool) -> None:
    """Report what the sums of a version lack of those in the store.

    They are compared with the sums that were loaded: what was applied since then can be applied again.

    Raises:
        QualityGateError: the sums are older than those that were loaded, or lack much of them.
    """
    coverage = Coverage.of_bundle(new)
    assert coverage is not None
    coverage = replace(coverage, ids={})  # a store has no histories
    state = read_state(store, store.state)
    if state is None:
        return
    loaded = read_state(store, store.loaded) or state  # stores of earlier versions have no such value
    if loaded.generation != state.generation:
        loaded = state
    old = Coverage.of_store(loaded, new.schema.counters, coverage.clock.zone)
    if coverage.clock.until < old.clock.until and not allow:
        raise QualityGateError(
            f"the version has counters until {coverage.clock.text}, but {store.address} was loaded with those until "
            f"{old.clock.text}: what came in between would be lost. Publish a newer version, or use {FLAG} and then "
            "'ranker counters apply' with the log since then"
        )
    require_coverage(old, coverage, store.address, "the version", allow=allow)
    if coverage.clock.until < state.until:
        live = replace(coverage.clock, until=state.until)
        print_status(
            f"the counters in {store.address} go back from {live.text} to {coverage.clock.text}: 'ranker counters "
            "follow' adds what was served since then again, and 'ranker counters apply' a log"
        )


def _remove_obsolete(store: CounterStore, generation: int) -> int:
    """Remove the values of other generations and return their number."""
    removed = 0
    keys: list[bytes] = []
    for key in store.client.scan_iter(match=_pattern(store.start), count=BATCH_SIZE):
        if key.decode() not in store.shared_keys:
            keys.append(key)
        if len(keys) == BATCH_SIZE:
            removed += _remove_batch(store, keys, generation)
            keys = []
    return removed + _remove_batch(store, keys, generation)


def _remove_batch(store: CounterStore, keys: list[bytes], generation: int) -> int:
    pipeline = store.client.pipeline(transaction=False)
    for key in keys:
        pipeline.getrange(key, 0, HEADER.size - 1)
    obsolete = [key for key, head in zip(keys, pipeline.execute(), strict=True) if not _is_current(head, generation)]
    if obsolete:
        store.client.unlink(*obsolete)
    return len(obsolete)


def _is_current(header: bytes, generation: int) -> bool:
    try:
        return decode_value(header, generation) is not None
    except ValueError:
        return False


def _pattern(start: str) -> str:
    """Return the pattern of all keys with this start, whose special characters match themselves."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in start) + "*"
