"""Histories of every impression: the last items of its user that were known at its time, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.counters.database import BATCH_ROWS
from pipelines.counters.events import Events, known_until
from ranking.counters.features import CounterFeatures
from ranking.encoding.batch import ragged_arange
from ranking.encoding.vocabulary import IdArray, hash_column
from ranking.schema import History, Schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class HistoryRanges:
    """Histories as ranges of one array.

    Attributes:
        items: ids in the order of user and time, int64 or string.
        starts: start of each impression's range in ``items`` [rows of the log].
        lengths: its length; 0 without a known item.
        users: hash of each user [users].
        last: start and end of each user's last items in ``items`` [users, 2].
    """

    items: pa.Array
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    users: IdArray
    last: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, rows: int) -> HistoryRanges:
        """Return empty histories of all impressions."""
        none = np.zeros(0, np.int64)
        items = pa.array([], pa.int64())
        return cls(items, np.zeros(rows, np.int64), np.zeros(rows, np.int32), none, np.zeros((0, 2), np.int64))

    def lists(self, start: int, stop: int) -> pa.LargeListArray:
        """Return the histories of the impressions in rows [start, stop) of the log; null without a known item."""
        return _lists(self.items, self.starts[start:stop], self.lengths[start:stop])

    def state(self) -> pa.LargeListArray:
        """Return the last items of each user [users]."""
        return _lists(self.items, self.last[:, 0], (self.last[:, 1] - self.last[:, 0]).astype(np.int32))


def _lists(items: pa.Array, starts: IdArray, lengths: npt.NDArray[np.int32]) -> pa.LargeListArray:
    """Return ranges of an array as lists; an empty range gives null."""
    offsets = pa.array(np.append(0, np.cumsum(lengths, dtype=np.int64)), pa.int64())
    positions = pa.array(ragged_arange(starts, lengths.astype(np.int64)))
    return pa.LargeListArray.from_arrays(offsets, items.take(positions), mask=pa.array(lengths == 0))


def history_ranges(
    connection: DuckDBPyConnection,
    events: Events,
    schema: Schema,
    history: History,
    earlier: CounterFeatures | None = None,
) -> HistoryRanges:
    """Return the history of each impression.

    Args:
        connection: database with the events of the log.
        events: the events, at least one.
        schema: schema with the history.
        history: the history.
        earlier: state of an earlier log; None for none.
    """
    connection.register("earlier_items", _earlier_items(connection, events, history, earlier))
    k, label = schema.histories.index(history), f"label_{schema.task_names.index(history.label)}"
    condition = f'{label} = {history.value} AND id_{k} IS NOT NULL AND "user" != 0'
    table = connection.sql(
        f'SELECT "user", t, id FROM (SELECT "user", t, row, id_{k} AS id FROM events WHERE {condition} '
        'UNION ALL BY NAME SELECT * FROM earlier_items) ORDER BY "user", t, row'
    ).to_arrow_table()
    users, times = table["user"].to_numpy(), table["t"].to_numpy()
    new_user = np.append(True, np.diff(users) != 0)[: len(users)]
    firsts = np.flatnonzero(new_user)
    last_of_time = np.append(new_user[1:] | (np.diff(times) != 0), True)[: len(users)]
    stops = np.flatnonzero(last_of_time) + 1
    known = {
        "user": users[stops - 1],
        "t": times[stops - 1],
        "first": firsts[np.searchsorted(firsts, stops - 1, side="right") - 1],
        "stop": stops,
    }
    connection.register("known_items", pa.table(known))
    reader = connection.sql(
        "SELECT e.row, known.first, known.stop "
        f'FROM (SELECT row, "user", {known_until(history)} AS until FROM events) AS e '
        'ASOF JOIN known_items AS known ON e."user" = known."user" AND e.until > known.t'
    ).to_arrow_reader(BATCH_ROWS)
    starts, lengths = np.zeros(events.rows, np.int64), np.zeros(events.rows, np.int32)
    for batch in reader:
        row, first, stop = (batch.column(name).to_numpy() for name in ("row", "first", "stop"))
        lengths[row] = np.minimum(stop - first, history.max_length)
        starts[row] = stop - lengths[row]
    ends = np.append(firsts[1:], len(users))[: len(firsts)]
    last = np.stack([np.maximum(firsts, ends - history.max_length), ends], 1)
    return HistoryRanges(_ids(table["id"], events, history), starts, lengths, users[firsts], last)


def _earlier_items(
    connection: DuckDBPyConnection, events: Events, history: History, earlier: CounterFeatures | None
) -> pa.Table:
    """Return the items of a state as events at its time, and remember their ids."""
    if earlier is None or earlier.clock is None:
        none = pa.array([], pa.int64())
        return pa.table({"user": none, "t": none, "row": none, "id": none})
    users = connection.sql('SELECT DISTINCT "user" FROM events WHERE "user" != 0').to_arrow_table()["user"].to_numpy()
    lists = earlier.histories[history.name].lists(users)
    ids = pc.list_flatten(lists)
    hashes = hash_column(ids)
    events.ids[history.name].update(zip(hashes.tolist(), ids.to_pylist(), strict=True))
    times = np.full(len(ids), earlier.clock.until)
    owners = users[pc.list_parent_indices(lists).to_numpy()]
    return pa.table({"user": owners, "t": times, "row": np.arange(len(ids)), "id": hashes})


def _ids(hashes: pa.ChunkedArray, events: Events, history: History) -> pa.Array:
    """Return the ids with these hashes, int64 or string."""
    encoded = hashes.combine_chunks().dictionary_encode()
    known = events.ids[history.name]
    ids = [known[value] for value in encoded.dictionary.to_pylist()]
    is_text = any(isinstance(value, str) for value in ids)
    values = pa.array(map(str, ids), pa.string()) if is_text else pa.array(ids, pa.int64())
    return values.take(encoded.indices)
