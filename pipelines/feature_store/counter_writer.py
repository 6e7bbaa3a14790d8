"""Addition of impressions to the counters in the feature store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import redis

from pipelines.console import print_status
from pipelines.data.log_schema import masked_labels
from pipelines.data.reader import as_log_error
from pipelines.feature_store.bundle_sums import BundleSums
from pipelines.feature_store.counter_store import CounterStore, require_state
from pipelines.feature_store.counter_values import (
    counters_by_root,
    decode_roots,
    distinct_counters,
    encode_roots,
    find_damaged,
    with_roots,
)
from pipelines.feature_store.forgotten_users import were_forgotten
from pipelines.feature_store.positions import Positions
from pipelines.feature_store.totals import Totals
from ranking.artifacts.feature_store_keys import counter_key
from ranking.counters.combine import Records, combine, impression_records, within_window
from ranking.counters.features import in_zone, to_microseconds
from ranking.counters.keys import PartHashes, root_part
from ranking.counters.stored_sums import StateValue, decode_records, definition, encode_records
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.errors import OutputError
from ranking.schema import Counter, Schema


class CounterWriter:
    """Adds impressions to the sums in the store.

    Each addition changes the sums and a position in one transaction. Therefore a reader that continues from the
    positions of the store adds nothing twice and leaves nothing out: after a crash, beside other readers, and with a
    store that was restored from a snapshot.

    Args:
        store: the store.
        schema: schema of the counters.
        zone: time zone of the state.
        bundle: sums with which values start that the store does not have, if they are those that were loaded.
        positions: positions of the readers.
        names: names of the counters to add to; None: all.
    """

    def __init__(
        self,
        store: CounterStore,
        schema: Schema,
        zone: str | None,
        bundle: BundleSums,
        positions: Positions,
        names: Collection[str] | None = None,
    ) -> None:
        self.store, self._schema, self._zone, self._bundle = store, schema, zone, bundle
        self._positions = positions
        self._groups = counters_by_root(schema)
        self._changed = {
            root: [counter for counter in counters if names is None or counter.name in names]
            for root, counters in self._groups.items()
        }
        self._hint = "what is written is consistent: fix the store, then repeat the command"

    def read_state(self) -> StateValue:
        """Read the sums over all keys.

        Raises:
            OutputError: the store holds no state, or a state without one of the counters.
        """
        return require_state(self.store, distinct_counters(self._schema), self._hint)

    def add(
        self,
        rows: pa.Table | None,
        file: str,
        generation: int,
        reader: str,
        source: str,
        before: str | None,
        after: str,
    ) -> tuple[StateValue, int]:
        """Add impressions that are newer than the loaded state, and move a position.

        Args:
            rows: the impressions; None: only the position moves.
            file: their file in messages.
            generation: generation of the state from which the reader started.
            reader: name of the reader.
            source: name of the input.
            before: position of the reader in the input from which the rows follow; None if it has none.
            after: its position after the rows.

        Returns:
            The new state and the number of added impressions.

        Raises:
            LogError: a column has the wrong type.
            OutputError: the store rejects a command, or another program has changed the generation or the position.
        """
        with self.store.errors(self._hint), self.store.client.pipeline(transaction=True) as pipeline:
            try:
                pipeline.watch(self.store.state, self.store.positions)
                state = self.read_state()
                if state.generation != generation or not self._positions.is_at(before, reader, source):
                    raise self._other_writer()
                values: dict[str, bytes] = {}
                added = 0
                if rows is not None:
                    with as_log_error(file):
                        rows, times = self._newer(rows, state)
                    added = len(times)
                if added:
                    totals = Totals.read(self.store)
                    state = replace(state, until=max(state.until, int(times.max())))
                    with as_log_error(file):
                        values, base = self._new_values(rows, times, state, totals)
                    state = replace(state, base=base)
                pipeline.multi()
                for key, value in values.items():  # a transaction in a cluster may not contain MSET
                    pipeline.set(key, value)
                if added:
                    pipeline.set(self.store.state, state.encode())
                    pipeline.set(self.store.totals, totals.encode())
                self._positions.move(pipeline, reader, source, after)
                pipeline.execute()
                self._positions.moved(reader, source, after)
            except redis.WatchError:
                raise self._other_writer() from None
        return state, added

    def _other_writer(self) -> OutputError:
        return OutputError(
            f"{self.store.address}: another program writes counters of this model, or the connection was lost; repeat "
            "the command"
        )

    def _newer(self, rows: pa.Table, state: StateValue) -> tuple[pa.Table, IdArray]:
        """Return the rows that are newer than the loaded state, and their times in microseconds [rows]."""
        times = to_microseconds(in_zone(rows[self._schema.columns.time].combine_chunks(), self._zone), 0)
        newer = times > state.loaded_until
        return rows.filter(pa.array(newer)), times[newer]

    def _new_values(
        self, rows: pa.Table, times: IdArray, state: StateValue, totals: Totals
    ) -> tuple[dict[str, bytes], dict[int, bytes]]:
        """Return the new values by key, and the new sums over all impressions by definition; add to the totals."""
        hashes = PartHashes.from_table(rows, self._schema)
        values: dict[str, bytes] = {}
        base = dict(state.base)
        for root, counters in self._groups.items():
            added: dict[str, Records] = {}
            for counter in self._changed[root]:
                part = root_part(counter, self._schema)
                roots = np.zeros(len(times), np.int64) if part is None else hashes.singles[part]
                labels = _labels_of(counter, rows, self._schema)
                records, impressions = impression_records(counter, hashes, roots, times, labels, self._zone)
                added[counter.name] = combine(counter, with_roots(root, records))
                before = decode_records(counter, base[definition(counter)])
                base[definition(counter)] = self._encoded(counter, np.append(before, impressions), state)
                totals.add(counter, added[counter.name])
                totals.prune(counter, state.until, self._zone)
            affected = np.unique(np.concatenate([np.empty(0, np.int64), *(part["root"] for part in added.values())]))
            if not len(affected):
                continue
            keys = [counter_key(self.store.start, state.generation, root, name) for name in affected.tolist()]
            replies: Any = self.store.client.mget(keys)
            try:
                stored_sums = decode_roots(counters, affected, replies)
            except ValueError:
                damaged = find_damaged(counters, replies)
                number = f"{sum(damaged):,} values of counters"
                print_status(f"{number} are damaged and start again from those of the bundle")
                replies = [None if bad else reply for bad, reply in zip(damaged, replies, strict=True)]
                stored_sums = decode_roots(counters, affected, replies)
            absent = affected[np.array([reply is None for reply in replies], np.bool_)]
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
            encoded = encode_roots(counters, sums, affected)
            values |= {key: value for key, (_, value) in zip(keys, encoded, strict=True)}
        return values, base

    def _encoded(self, counter: Counter, records: Records, state: StateValue) -> bytes:
        combined = within_window(counter, combine(counter, records), state.until, self._zone)
        return encode_records(counter, combined).tobytes()


def _labels_of(counter: Counter, rows: pa.Table, schema: Schema) -> FloatArray:
    """Return the labels of a counter [rows, labels]; NaN where null or masked.

    Raises:
        InvalidInputError: a label or a mask is not a number.
    """
    tasks = {task.name: task for task in schema.tasks}
    labels = [masked_labels(rows, tasks[name]) for name in counter.labels]
    return np.stack([column.to_numpy(zero_copy_only=False) for column in labels], 1)
