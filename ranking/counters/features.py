"""Add the columns of counters and histories to tables, from the state at the end of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.counters.history_state import HistoryState, open_history_states
from ranking.counters.keys import PartHashes, counter_keys
from ranking.counters.state import CounterState, StateClock, open_counter_states
from ranking.counters.stored_sums import StoredSums
from ranking.encoding.columns import coalesce
from ranking.encoding.vocabulary import FloatArray, IdArray
from ranking.errors import InvalidInputError
from ranking.ids.npy import ReadFile, map_file
from ranking.schema import Counter, Schema


@dataclass(frozen=True)
class CounterFeatures:
    """Computes the features of counters and histories from a state.

    Attributes:
        schema: schema with counters and histories.
        clock: time of the state; None if the schema has neither counters nor histories.
        counters: state of each counter by name.
        histories: state of each history by name.
        folder: folder of the state; None without one.
    """

    schema: Schema
    clock: StateClock | None = None
    counters: Mapping[str, CounterState] = field(default_factory=dict)
    histories: Mapping[str, HistoryState] = field(default_factory=dict)
    folder: Path | None = None

    @classmethod
    def open(cls, folder: Path, schema: Schema, read_file: ReadFile = map_file) -> Self:
        """Open the state in a folder, which is not read if the schema has neither counters nor histories.

        Raises:
            OSError, ValueError, LookupError, ArrowException: the files are not the state of this schema.
        """
        if not schema.counter_features:
            return cls(schema)
        counters = open_counter_states(folder, schema.counters, read_file)
        histories = open_history_states(folder, schema.histories, read_file)
        return cls(schema, StateClock.read(folder), counters, histories, folder)

    def numbers(
        self, hashes: PartHashes, now: IdArray, counters: Sequence[Counter], stored: StoredSums | None = None
    ) -> FloatArray:
        """Return the values of all columns of these counters [rows, columns] float64, rounded to float32; NaN is null.

        Args:
            hashes: hashes of the ids that form keys.
            now: time of each row in microseconds [rows] int64, see ``StateClock``.
            counters: counters to compute.
            stored: sums from a store, which replace those of the state.
        """
        if not counters:
            return np.empty((len(now), 0))
        values = []
        for counter in counters:
            state, keys = self.counters[counter.name], counter_keys(counter, hashes)
            source = None if stored is None else stored.source(state, self.schema, keys, hashes)
            values.append(state.values(keys, now, source))
        return np.concatenate(values, 1).astype(np.float32).astype(np.float64)

    def lists(self, users: IdArray) -> dict[str, pa.LargeListArray]:
        """Return the values of all histories by column [rows]; ``users`` are hashes of user ids [rows]."""
        return {name: state.lists(users) for name, state in self.histories.items()}

    def item_lists(self, users: IdArray) -> dict[str, list[list[int | str] | None]]:
        """Return the same as ``lists`` as Python objects, faster for a few users."""
        return {name: state.item_lists(users) for name, state in self.histories.items()}

    def complete(self, table: pa.Table) -> pa.Table:
        """Add the columns that a completed table does not have; existing values are kept.

        The time of a row is that of the log's time column, or the current time if it is null or the table has none.

        Raises:
            InvalidInputError: the time column holds no times.
        """
        if self.clock is None:
            return table
        hashes = PartHashes.from_table(table, self.schema)
        now = self._times(table, self.clock)
        user = self.schema.key_feature("user")
        names = [column for counter in self.schema.counters for column in counter.columns]
        numbers = self.numbers(hashes, now, self.schema.counters).T
        computed: dict[str, pa.Array] = {
            name: pa.array(column, pa.float64(), from_pandas=True) for name, column in zip(names, numbers, strict=True)
        }
        if user is not None:
            computed |= self.lists(hashes.singles[user.name])
        features = {feature.name: feature for feature in self.schema.counter_features}
        for name, column in computed.items():
            present = name in table.column_names and not pa.types.is_null(table[name].type)
            if name in table.column_names:
                column = coalesce(table[name].combine_chunks(), column, features[name]) if present else column
                table = table.set_column(table.column_names.index(name), name, column)
            else:
                table = table.append_column(name, column)
        return table

    def count_included(self, table: pa.Table) -> int:
        """Return the number of rows of a table whose time is not after the state, which may include their labels.

        Raises:
            InvalidInputError: the time column holds no times.
        """
        if self.clock is None:
            return 0
        return int(np.count_nonzero(self._times(table, self.clock) <= self.clock.until))

    def _times(self, table: pa.Table, clock: StateClock) -> IdArray:
        """Return the time of each row in microseconds [rows] int64."""
        current = clock.now()
        column = self.schema.columns.time
        if column not in table.column_names:
            return np.full(table.num_rows, current, np.int64)
        times = table[column].combine_chunks()
        if not (pa.types.is_timestamp(times.type) or pa.types.is_date(times.type) or pa.types.is_null(times.type)):
            raise InvalidInputError(column, f"holds {times.type}, but it is the time: write timestamps")
        return to_microseconds(in_zone(times, clock.zone), current)


def in_zone(times: pa.Array, zone: str | None) -> pa.Array:
    """Return times with or without a time zone, as those of the log: local time is time in the zone of the log."""
    if (getattr(times.type, "tz", None) is None) == (zone is None) or pa.types.is_null(times.type):
        return times
    if zone is None:
        return pc.local_timestamp(times)
    return pc.assume_timezone(
        times.cast(pa.timestamp("us"), safe=False), zone, ambiguous="earliest", nonexistent="latest"
    )


def to_microseconds(times: pa.Array, default: int) -> IdArray:
    """Return dates or timestamps as microseconds since 1970 [n] int64; null gives the default."""
    microseconds = times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False)
    values: IdArray = microseconds.cast(pa.int64()).fill_null(default).to_numpy()
    return values
