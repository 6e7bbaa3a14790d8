"""``ranker counters apply``: adds the impressions of a log to the counters in the feature store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from pipelines.config.uri import Uri
from pipelines.console import Progress, print_status
from pipelines.data.log_schema import masked_labels
from pipelines.data.reader import LogReader, ScannedChunk, as_log_error
from pipelines.jobs.bundle_sums import BundleSums
from pipelines.jobs.counter_store import CounterStore, load_served, read_state
from pipelines.jobs.counter_values import absent_roots, counters_by_root, decode_roots, encode_roots, with_roots
from pipelines.jobs.forgotten_users import were_forgotten
from ranking.artifacts.feature_store_keys import counter_key
from ranking.counters.combine import Records, combine, impression_records, within_window
from ranking.counters.features import in_zone, to_microseconds
from ranking.counters.keys import PartHashes, root_part
from ranking.counters.stored_sums import StateValue, decode_records, definition, encode_records
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.errors import OutputError
from ranking.schema import Counter, Schema


def apply_log(logs: Uri, path: Path, url: str, model: str | None, prefix: str) -> dict[str, Any]:
    """Add the impressions of a log that are newer than the loaded state.

    Each chunk of the log changes its sums, and is recorded as applied, in one transaction. A repeated call, also after
    a crash, skips the chunks that are applied.

    Args:
        logs: Parquet file or folder.
        path: the repository; the counters are those of the current version.
        url: address of the store, see ``ranking.artifacts.store_address``.
        model: name of the model; default: the default model of the repository.
        prefix: prefix of the keys.

    Returns:
        The address, the time of the state, and the number of impressions: ``applied``, ``old`` (not newer than the
        loaded state), ``repeated`` (in chunks that were applied before) and ``bad``.

    Raises:
        BundleError: the model cannot be read.
        LogError: the log cannot be read.
        OutputError: the store cannot be reached, rejects a command, or holds no counters of this model.
        UsageError: the address has an unsupported option, or the model has no counters.
    """
    name, ranker, derived = load_served(path, model)
    assert derived.clock is not None
    store = CounterStore(url, prefix, name)
    store.require_no_eviction()
    writer = ChunkWriter(store, ranker.schema, derived.clock.zone, BundleSums(derived))
    counts = {"applied": 0, "old": 0, "repeated": 0, "bad": 0}
    progress = Progress("applying", unit="rows")
    state = writer.read_state()
    for chunk in LogReader(logs, ranker.schema.logged, dict(ranker.tables)).scan():
        marker = chunk.name
        counts["bad"] += chunk.bad.num_rows
        if writer.is_applied(marker):
            counts["repeated"] += chunk.rows.num_rows
        else:
            state, applied = writer.apply(chunk, marker)
            counts["applied"] += applied
            counts["old"] += chunk.rows.num_rows - applied
        progress.advance(chunk.rows.num_rows)
    progress.close()
    if counts["bad"]:
        print_status(f"{counts['bad']:,} bad rows were not applied; 'ranker check' shows the reasons")
    return {"to": writer.store.address, "counters_as_of": replace(derived.clock, until=state.until).text, **counts}


class ChunkWriter:
    """Adds chunks of a log to the sums in the store.

    Args:
        store: the store.
        schema: schema of the counters.
        zone: time zone of the state.
        bundle: sums with which values start that the store does not have, if they are those that were loaded.
        names: names of the counters to add to; None: all.
    """

    def __init__(
        self,
        store: CounterStore,
        schema: Schema,
        zone: str | None,
        bundle: BundleSums,
        names: Collection[str] | None = None,
    ) -> None:
        self.store, self._schema, self._zone, self._bundle = store, schema, zone, bundle
        self._groups = counters_by_root(schema)
        self._changed = {
            root: [counter for counter in counters if names is None or counter.name in names]
            for root, counters in self._groups.items()
        }
        self._hint = "what is written is consistent: fix the store and apply the log again"

    def read_state(self) -> StateValue:
        """Read the sums over all keys.

        Raises:
            OutputError: the store holds no state, or a state without one of the counters.
        """
        state = read_state(self.store, self.store.state, self._hint)
        counters = [counter for counters in self._groups.values() for counter in counters]
        if state is None or any(definition(counter) not in state.base for counter in counters):
            reason = "holds no counters" if state is None else "holds other counters than the current version"
            raise OutputError(f"{self.store.address} {reason} of this model: run 'ranker counters load' first")
        return state

    def is_applied(self, marker: str) -> bool:
        """Return whether a chunk is applied."""
        with self.store.errors(self._hint):
            return bool(self.store.client.sismember(self.store.applied, marker))

    def apply(self, chunk: ScannedChunk, marker: str) -> tuple[StateValue, int]:
        """Add the impressions of a chunk that are newer than the loaded state, in one transaction.

        Returns:
            The new state and the number of impressions.

        Raises:
            LogError: a column has the wrong type.
            OutputError: the store rejects a command, or another program changes it at the same time.
        """
        with self.store.errors(self._hint), self.store.client.pipeline(transaction=True) as pipeline:
            try:
                pipeline.watch(self.store.state)
                state = self.read_state()
                with as_log_error(chunk.file):
                    rows, times = self._newer(chunk.rows, state)
                values: dict[str, bytes] = {}
                if len(times):
                    state = replace(state, until=max(state.until, int(times.max())))
                    with as_log_error(chunk.file):
                        values, base = self._new_values(rows, times, state)
                    state = replace(state, base=base)
                pipeline.multi()
                for key, value in values.items():  # a transaction in a cluster may not contain MSET
                    pipeline.set(key, value)
                if values:
                    pipeline.set(self.store.state, state.encode())
                pipeline.sadd(self.store.applied, marker)
                pipeline.execute()
            except redis.WatchError:
                raise OutputError(
                    f"{self.store.address}: another program writes counters of this model; apply the log again"
                ) from None
        return state, len(times)

    def _newer(self, rows: pa.Table, state: StateValue) -> tuple[pa.Table, IdArray]:
        """Return the rows that are newer than the loaded state, and their times in microseconds [rows]."""
        times = to_microseconds(in_zone(rows[self._schema.columns.time].combine_chunks(), self._zone), 0)
        newer = times > state.loaded_until
        return rows.filter(pa.array(newer)), times[newer]

    def _new_values(
        self, rows: pa.Table, times: IdArray, state: StateValue
    ) -> tuple[dict[str, bytes], dict[int, bytes]]:
        """Return the new values by key, and the new sums over all keys by definition."""
        hashes = PartHashes.from_table(rows, self._schema)
        values: dict[str, bytes] = {}
        base = dict(state.base)
        for root, counters in self._groups.items():
            added: dict[str, Records] = {}
            for counter in self._changed[root]:
                part = root_part(counter, self._schema)
                roots = np.zeros(len(times), np.int64) if part is None else hashes.singles[part]
                labels = labels_of(counter, rows, self._schema)
                records, totals = impression_records(counter, hashes, roots, times, labels, self._zone)
                added[counter.name] = combine(counter, with_roots(root, records))
                before = decode_records(counter, base[definition(counter)])
                base[definition(counter)] = self._encoded(counter, np.append(before, totals), state)
            affected = np.unique(np.concatenate([np.empty(0, np.int64), *(part["root"] for part in added.values())]))
            if not len(affected):
                continue
            keys = [counter_key(self.store.start, root, root_hash) for root_hash in affected.tolist()]
            replies: Any = self.store.client.mget(keys)
            try:
                stored_sums = decode_roots(counters, affected, replies, state.generation)
            except ValueError:
                replies = without_damaged(counters, affected, replies, state.generation)
                stored_sums = decode_roots(counters, affected, replies, state.generation)
            absent = absent_roots(affected, replies, state.generation)
            clock = self._bundle.clock
            if clock is None or clock.until != state.loaded_until:
                absent = absent[:0]
            elif root == "user":
                absent = absent[~were_forgotten(self.store, absent, clock)]
            sums = {}
            for counter in counters:
                stored = stored_sums[counter.name]
                if len(absent):
                    stored = np.append(stored, self._bundle.find(counter, root, absent))
                joined = combine(counter, np.append(stored, added.get(counter.name, stored[:0])))
                sums[counter.name] = within_window(counter, joined, state.until, self._zone)
            encoded = encode_roots(counters, sums, state.generation, affected)
            values |= {key: value for key, (_, value) in zip(keys, encoded, strict=True)}
        return values, base

    def _encoded(self, counter: Counter, totals: Records, state: StateValue) -> bytes:
        combined = within_window(counter, combine(counter, totals), state.until, self._zone)
        return encode_records(counter, combined).tobytes()


def without_damaged(
    counters: Sequence[Counter], roots: IdArray, values: Sequence[bytes | None], generation: int
) -> list[bytes | None]:
    """Return the values of roots, of which those that cannot be decoded are None; report their number."""

    def is_damaged(root: int, value: bytes | None) -> bool:
        try:
            decode_roots(counters, np.array([root]), [value], generation)
        except ValueError:
            return True
        return False

    damaged = [is_damaged(root, value) for root, value in zip(roots.tolist(), values, strict=True)]
    print_status(f"{sum(damaged):,} values of counters are damaged and start again from those of the bundle")
    return [None if bad else value for value, bad in zip(values, damaged, strict=True)]


def labels_of(counter: Counter, rows: pa.Table, schema: Schema) -> FloatArray:
    """Return the labels of a counter [rows, labels]; NaN where null or masked.

    Raises:
        InvalidInputError: a label or a mask is not a number.
    """
    tasks = {task.name: task for task in schema.tasks}
    labels = [masked_labels(rows, tasks[name]) for name in counter.labels]
    return np.stack([column.to_numpy(zero_copy_only=False) for column in labels], 1)
