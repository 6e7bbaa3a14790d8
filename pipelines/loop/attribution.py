"""Attribution of feedback to impressions: which events count for which candidate, and the labels that follow.

The rules are described in docs/loop.md. Times are in microseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.loop.request_ids import hash_ids
from ranking.encoding.vocabulary import IdArray
from ranking.errors import single_line
from ranking.schema import Schema
from ranking.served_log.reader import DamagedFileError, ServedFile

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MICROSECOND, EPOCH = timedelta(microseconds=1), datetime(1970, 1, 1, tzinfo=UTC)
MAX_SKEW = 300_000_000
"""Microseconds by which an event may precede its impression, because clocks differ."""
FUTURE = timedelta(days=1)
"""Time by which a request may be in the future, because clocks differ."""
OUTCOMES = ("used", "late", "early", "unmatched")


def microseconds(time: datetime) -> int:
    """Return a time in microseconds since 1970, UTC."""
    return (time - EPOCH) // MICROSECOND


@dataclass(frozen=True)
class LabelColumns:
    """Columns that feedback determines.

    Attributes:
        binary: columns of 0 and 1: labels of binary tasks, and masks.
        numeric: labels of regressions.
    """

    binary: tuple[str, ...]
    numeric: tuple[str, ...]

    @classmethod
    def of(cls, schemas: Sequence[Schema]) -> LabelColumns:
        """Return the columns of several versions of a model; a mask that is a feature or a label stays that."""
        numeric = {task.label: None for schema in schemas for task in schema.tasks if task.kind == "regression"}
        binary = {task.label: None for schema in schemas for task in schema.tasks if task.kind == "binary"}
        features = {feature.column for schema in schemas for feature in schema.inputs}
        masks = {task.mask: None for schema in schemas for task in schema.tasks if task.mask is not None}
        binary |= {mask: None for mask in masks if mask not in features and mask not in numeric}
        return cls(tuple(binary), tuple(name for name in numeric if name not in binary))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.binary, *self.numeric)


class Attribution:
    """Attributes the events of the table ``events`` to the requests whose window has closed.

    Args:
        connection: database with the table ``events``, see ``read_events``.
        window: length of the window in microseconds.
        labels: columns to determine.
        shown: name of the label that marks the candidates that were shown.
        known: hashes of the ids of requests that earlier runs joined, see ``hash_ids``.
    """

    def __init__(
        self,
        connection: DuckDBPyConnection,
        window: int,
        labels: LabelColumns,
        shown: str,
        known: npt.NDArray[np.uint64],
    ) -> None:
        self._connection, self._window, self._labels, self._shown = connection, window, labels, shown
        self._latest = microseconds(datetime.now(UTC) + FUTURE)
        self._impossible = 0
        connection.execute(
            "CREATE OR REPLACE TABLE requests (file INT, row BIGINT, request_id VARCHAR, hash UBIGINT, t BIGINT)"
        )
        connection.register("known", pa.table({"hash": known}))
        connection.execute("CREATE OR REPLACE TABLE candidates (request_id VARCHAR, item VARCHAR)")

    def add(self, number: int, file: ServedFile, after: int | None, until: int) -> int:
        """Add the requests of a file with after < time ≤ until; return the number of later requests.

        Requests before 1970, or later than in ``FUTURE``, are left out and counted: training would reject such rows.

        Args:
            number: number of the file.
            file: the file.
            after: time until which earlier runs used the file; None for the first time.
            until: time of the last request whose window has closed.

        Raises:
            DamagedFileError: the file is damaged.
            LogError: the file cannot be read.
        """
        import duckdb  # part of the train extra

        requests = file.requests()
        times = requests["t"].to_numpy()
        possible = (times >= 0) & (times <= self._latest)
        if after is None:
            self._impossible += int((~possible).sum())
        closed = (times <= until) & possible
        selected = closed if after is None else closed & (times > after)
        if selected.any():
            new = requests.filter(pa.array(selected))
            new = new.append_column("file", pa.array([number] * new.num_rows))
            new = new.append_column("hash", pa.array(hash_ids(new["request_id"])))
            items = file.read(["request_id", "item_id"]).filter(pa.array(selected))
            self._connection.register("new_requests", new)
            self._connection.register("new_items", items)
            try:
                self._connection.execute("INSERT INTO requests SELECT file, row, request_id, hash, t FROM new_requests")
                self._connection.execute(
                    "INSERT INTO candidates SELECT request_id, unnest(item_id)::VARCHAR FROM new_items "
                    "WHERE request_id IN (SELECT request_id FROM events)"
                )
            except duckdb.InvalidInputException as error:  # such as text that is not UTF-8
                raise DamagedFileError(file.path, single_line(error)[:200]) from None
            self._connection.unregister("new_requests")
            self._connection.unregister("new_items")
        return int((possible & (times > until)).sum())

    def resolve(self) -> None:
        """Decide on every event; call this after all files were added."""
        run = self._connection.execute
        # Files and their rows are in the order of arrival; the time is what the client says.
        run(
            "CREATE OR REPLACE TABLE answers AS SELECT * FROM requests WHERE hash NOT IN (SELECT hash FROM known) "
            "QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY file, row) = 1"
        )
        run(
            f"""
            CREATE OR REPLACE TABLE decided AS SELECT events.*, CASE
                WHEN known.item IS NULL THEN 'unmatched'
                WHEN events.t > answers.t + {self._window} THEN 'late'
                WHEN events.t < answers.t - {MAX_SKEW} THEN 'early'
                ELSE 'used' END AS outcome
            FROM events JOIN answers USING (request_id)
            LEFT JOIN (SELECT DISTINCT * FROM candidates) AS known
                ON known.request_id = events.request_id AND known.item = events.item
            """
        )
        columns = self._labels
        values = [f"coalesce(bool_or({_value(name)} = 1), false) AS {self._column(name)}" for name in columns.binary]
        values += [
            f"last({_value(name)} ORDER BY t, received, {_value(name)}) FILTER ({_value(name)} IS NOT NULL) "
            f"AS {self._column(name)}"
            for name in columns.numeric
        ]
        # A label of a task with the name of the marker is not a marker.
        marker = "NULL" if self._shown in columns.names else _value(self._shown)
        values.append(f"bool_or({marker} = 1) AS shown")
        run(
            f"CREATE OR REPLACE TABLE labels AS SELECT request_id, item, {', '.join(values)} "
            "FROM decided WHERE outcome = 'used' GROUP BY request_id, item"
        )
        run(
            "CREATE OR REPLACE TABLE marked AS "
            f"SELECT DISTINCT request_id FROM decided WHERE outcome = 'used' AND {marker} = 1"
        )

    def rows(self, number: int) -> IdArray:
        """Return the positions of the requests of a file that become rows, ascending."""
        query = "SELECT row FROM answers WHERE file = $number ORDER BY row"
        rows: IdArray = self._connection.execute(query, {"number": number}).fetchnumpy()["row"]
        return np.asarray(rows, np.int64)

    def joined(self) -> npt.NDArray[np.uint64]:
        """Return the hashes of the ids of all requests that become rows, in the order of arrival."""
        hashes = self._connection.execute("SELECT hash FROM answers ORDER BY file, row").fetchnumpy()["hash"]
        return np.asarray(hashes, np.uint64)

    def labels(self, request_ids: pa.Array, items: pa.Array) -> tuple[pa.Table, pa.ChunkedArray]:
        """Return the labels of candidates in their order, and whether each candidate becomes a row [candidates]."""
        candidates = pa.table({"n": np.arange(len(items)), "request_id": request_ids, "item": items.cast(pa.string())})
        self._connection.register("asked", candidates)
        columns = [f"coalesce({self._column(name)}, false)::TINYINT" for name in self._labels.binary]
        columns += map(self._column, self._labels.numeric)
        table: pa.Table = self._connection.sql(
            f"SELECT {', '.join(columns)}, marked.request_id IS NULL OR coalesce(shown, false) "
            "FROM asked LEFT JOIN labels USING (request_id, item) "
            "LEFT JOIN marked ON marked.request_id = asked.request_id ORDER BY n"
        ).to_arrow_table()
        self._connection.unregister("asked")
        *labels, is_row = table.columns
        return pa.table(labels, list(self._labels.names)), is_row

    def counts(self) -> dict[str, int]:
        """Return the number of events of each outcome, of repeated events and of repeated request ids."""
        outcomes = dict(self._connection.execute("SELECT outcome, count(*) FROM decided GROUP BY 1").fetchall())
        repeated = "SELECT count(*) - count(DISTINCT (request_id, item, labels, t)) FROM decided"
        requests = "SELECT (SELECT count(*) FROM requests) - (SELECT count(*) FROM answers)"
        return {
            **{outcome: outcomes.get(outcome, 0) for outcome in OUTCOMES},
            "duplicates": self._scalar(repeated),
            "repeated_requests": self._scalar(requests),
            "impossible_times": self._impossible,
        }

    def decided_by_file(self) -> dict[str, int]:
        """Return the number of events with an outcome by file of feedback."""
        return dict(self._connection.execute("SELECT file, count(*) FROM decided GROUP BY 1").fetchall())

    def events_by_file(self) -> dict[str, tuple[int, int]]:
        """Return the number of events and the latest arrival by file of feedback."""
        query = "SELECT file, count(*), max(received) FROM events GROUP BY 1"
        return {file: (count, latest) for file, count, latest in self._connection.execute(query).fetchall()}

    def _column(self, label: str) -> str:
        """Return the name of a label's column in the database: not its own, which could be that of another column."""
        return f"label_{self._labels.names.index(label)}"

    def _scalar(self, query: str) -> int:
        (value,) = self._connection.execute(query).fetchall()[0]
        return int(value)


def _value(label: str) -> str:
    """Return SQL for the value of a label in an event; null without one."""
    text = label.replace("'", "''")
    return f"labels['{text}']"
