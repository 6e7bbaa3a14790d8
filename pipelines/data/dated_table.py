"""Side tables with several rows per id, each valid from a time on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.counters.state import StateClock
from ranking.encoding.columns import canonical_ids, cast_ids
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.vocabulary import IdArray
from ranking.errors import InvalidInputError
from ranking.schema import Owner, Schema

VALID_FROM = "valid_from"
"""Name of the column with the time from which a row is valid."""


class DatedFeatureTable(FeatureTable):
    """Features of users or items by id and time.

    As a ``FeatureTable`` it holds the row of each id that is valid now; ids whose first row is valid later are unknown.

    Args:
        table: one row per id and time, in any order.
        key: name of the id column.
        time_column: name of the column with the times of the rows to complete.

    Raises:
        InvalidInputError: a time is null or not a time, an id is valid twice from the same time, or the ids are wrong
            (see ``FeatureTable``).
    """

    def __init__(self, table: pa.Table, key: str, time_column: str) -> None:
        times = valid_times(table[VALID_FROM])
        ids = canonical_ids(table[key].combine_chunks(), key)
        if ids.null_count:
            raise InvalidInputError(key, "an id is null: every row needs one", ids.is_null().index(True).as_py())
        encoded = ids.dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        order = np.lexsort((times, codes))
        check_distinct(codes[order], times[order], order, key, ids)
        self._time_column, self._zone = time_column, time_zone(table[VALID_FROM].type)
        self._history = table.drop_columns([VALID_FROM]).take(order).combine_chunks()
        self._codes = {value: code for code, value in enumerate(encoded.dictionary.to_pylist())}
        self._dates = np.unique(times)
        ranks = np.searchsorted(self._dates, times[order], "right")
        self._keys = codes[order] * (len(self._dates) + 1) + ranks
        now = np.full(len(self._codes), StateClock(0, self._zone).now())
        newest = self._rows(np.arange(len(self._codes)), now)
        super().__init__(self._history.take(newest[newest >= 0]), key)
        self.key_type = ids.type

    def values(self, table: pa.Table, columns: list[str]) -> dict[str, pa.Array]:
        """Return these columns as of the time of each row of a table; null before the first row of an id.

        Raises:
            InvalidInputError: the times of the rows and of this table do not both have a time zone, or not both none.
        """
        if self.key not in table.column_names or self._time_column not in table.column_names:
            return super().values(table, columns)
        times = table[self._time_column].combine_chunks()
        if not pa.types.is_null(times.type) and (time_zone(times.type) is None) != (self._zone is None):
            with_zone = VALID_FROM if self._zone is not None else f"'{self._time_column}' of the log"
            raise InvalidInputError(
                VALID_FROM, f"must have a time zone exactly if the time of the log has one (only {with_zone} has one)"
            )
        encoded = cast_ids(table[self.key].combine_chunks(), self.key_type, self.key).dictionary_encode()
        known = [self._codes.get(value, -1) for value in encoded.dictionary.to_pylist()]
        codes = np.array([*known, -1], np.int64)[encoded.indices.fill_null(len(known)).to_numpy()]
        rows = self._rows(codes, _microseconds(times))
        indices = pa.array(rows, mask=rows < 0)
        return {c: self._history[c].combine_chunks().take(indices) for c in columns if c in self._history.column_names}

    def _rows(self, codes: IdArray, times: IdArray) -> IdArray:
        """Return the row of each id code [n] that is valid at each time [n] in microseconds; −1 without one."""
        width = len(self._dates) + 1
        queries = codes * width + np.searchsorted(self._dates, times, "right")
        rows = np.searchsorted(self._keys, queries, "right") - 1
        valid = (rows >= 0) & (codes >= 0)
        valid[valid] = self._keys[rows[valid]] // width == codes[valid]
        return np.where(valid, rows, -1)


class RowDates:
    """Ids and times of the rows of a side table that is read in chunks, at 16 bytes per row."""

    def __init__(self) -> None:
        self._ids = [np.empty(0, np.uint64)]
        self._times = [np.empty(0, np.int64)]

    def add(self, ids: npt.NDArray[np.uint64], times: IdArray) -> None:
        """Add rows: the hash of their ids [rows], and the times from which they are valid in microseconds [rows]."""
        self._ids.append(ids)
        self._times.append(times)

    def current(self, now: int) -> npt.NDArray[np.bool_]:
        """Return whether each row [rows] is the one of its id that is valid at a time in microseconds."""
        ids, times = np.concatenate(self._ids), np.concatenate(self._times)
        order = np.lexsort((times, ids))
        order = order[times[order] <= now]
        last = np.append(np.diff(ids[order]) != 0, True)[: len(order)]
        current = np.zeros(len(ids), np.bool_)
        current[order[last]] = True
        return current


def feature_table(table: pa.Table, schema: Schema, owner: Owner) -> FeatureTable:
    """Return the features of an owner in a side table; they have dates if the table has a column ``valid_from``.

    Args:
        table: the side table; columns that no feature reads are ignored.
        schema: schema of the features. If a feature reads the column ``valid_from``, it has no other meaning.
        owner: owner of the features.

    Raises:
        InvalidInputError: as for ``FeatureTable`` and ``DatedFeatureTable``.
    """
    key, columns = str(schema.id_column(owner)), schema.columns_of(owner)
    dated = is_dated(table.column_names, columns)
    kept = [name for name in table.column_names if name == key or name in columns or (dated and name == VALID_FROM)]
    if dated and key in kept:
        return DatedFeatureTable(table.select(kept), key, schema.columns.time)
    return FeatureTable(table.select(kept) if key in kept else table, key)


def is_dated(names: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether a side table with these columns has dates; ``columns`` are those that features read."""
    return VALID_FROM in names and VALID_FROM not in columns


def valid_times(column: pa.ChunkedArray) -> IdArray:
    """Return the times from which rows are valid in microseconds since 1970 [rows] int64.

    Raises:
        InvalidInputError: the column holds no times, or a null.
    """
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise InvalidInputError(VALID_FROM, f"holds {column.type}: write timestamps or dates")
    times = column.combine_chunks()
    if times.null_count:
        raise InvalidInputError(VALID_FROM, "is null: every row needs a time", times.is_null().index(True).as_py())
    return _microseconds(times)


def time_zone(kind: pa.DataType) -> str | None:
    """Return the time zone of a type; None for dates and for timestamps without one."""
    zone: str | None = getattr(kind, "tz", None)
    return zone


def check_distinct(ids: IdArray, times: IdArray, order: IdArray, key: str, values: pa.Array) -> None:
    """Check that no id is valid twice from the same time.

    Args:
        ids: number or hash of the id of each row [rows], in ascending order of id and time.
        times: time of each row [rows].
        order: position of each row in the table [rows].
        key: name of the id column.
        values: ids of the table.

    Raises:
        InvalidInputError: names the later of two equal rows.
    """
    equal = np.flatnonzero((np.diff(ids) == 0) & (np.diff(times) == 0))
    if len(equal):
        row = int(order[equal + 1].min())
        reason = f"id {values[row].as_py()!r} occurs twice with the same {VALID_FROM}: keep one row per id and time"
        raise InvalidInputError(key, reason, row)


def _microseconds(times: pa.Array) -> IdArray:
    """Return dates or timestamps in microseconds since 1970 [n] int64; null becomes the smallest number."""
    microseconds = times.cast(pa.timestamp("us", time_zone(times.type)), safe=False).cast(pa.int64())
    values: IdArray = microseconds.fill_null(np.iinfo(np.int64).min).to_numpy()
    return values
