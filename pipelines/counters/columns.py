"""Compute the columns of counters and histories of a log, and their state after its last event."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.console import Progress, print_status
from pipelines.counters.database import open_database
from pipelines.counters.events import Events, extract_events
from pipelines.counters.histories import HistoryRanges, history_ranges
from pipelines.counters.served_values import ServedValues
from pipelines.counters.sums import CounterQuery, EarlierSums
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader
from ranking.artifacts.atomic_files import os_error_text
from ranking.counters.features import CounterFeatures
from ranking.counters.history_state import write_history_state
from ranking.counters.state import StateClock, write_counter_state
from ranking.errors import OutputError
from ranking.schema import Schema
from ranking.temporary_folders import temporary_folder

Numbers = npt.NDArray[np.float32]
"""Values of the features of a counter [columns, rows of the log]; NaN is null."""

WORK = ".events"
"""Name of the folder of temporary files."""
MISSING_START = 0.01
"""Share of the time of a log without its first impressions in which it still counts as whole."""


def write_joined_columns(
    reader: LogReader, schema: Schema, folder: Path, state: Path | None = None, earlier: CounterFeatures | None = None
) -> JoinedColumns:
    """Compute the columns of counters and histories for every row of a log.

    Args:
        reader: the log.
        schema: schema with counters or histories.
        folder: empty folder for the columns, which also takes temporary files.
        state: empty folder for the sums of all keys after the last event; None: not written.
        earlier: state of an earlier log, which counts too if this log starts after it.

    Raises:
        LogError: the log cannot be read.
        ConfigError: a counter cannot be computed for this log.
        OutputError: the folder cannot be written, or memory or disk space run out.
    """
    work = folder / WORK
    try:
        work.mkdir()
        events = extract_events(reader, schema, work)
        digests = {rows.file.name: rows.digest for rows in events.log}
        joined = JoinedColumns(folder, digests, definition(reader, schema))
        _write_files(events, schema, joined, *_compute(events, schema, work, state, earlier))
        shutil.rmtree(work)
        joined.write()
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({os_error_text(error)}); free space, then try again") from None
    return joined


@contextmanager
def joined_columns(
    reader: LogReader, schema: Schema, computed: Path | None = None, earlier: CounterFeatures | None = None
) -> Iterator[JoinedColumns | None]:
    """Provide the columns of counters and histories of a log; None if the schema has neither.

    Args:
        reader: the log.
        schema: the schema.
        computed: columns of a run, which are used if they belong to this schema and contain this log; otherwise, and
            by default, the columns are computed in a temporary folder.
        earlier: state of the model, see ``write_joined_columns``.

    Raises:
        LogError, ConfigError, OutputError: as for ``write_joined_columns``.
    """
    if not schema.counter_features:
        yield None
        return
    if computed is not None:
        joined = JoinedColumns.read(computed)
        part = joined.part(reader.files) if joined.definition == definition(reader, schema) else None
        if part is not None:
            yield part
            return
    with temporary_folder("counters") as folder:
        yield write_joined_columns(reader, schema, folder, earlier=earlier)


def belongs_to(joined: JoinedColumns, reader: LogReader, schema: Schema) -> bool:
    """Return whether columns were computed for this schema and for the present files of this log.

    Raises:
        LogError: a file of the log cannot be read.
    """
    return joined.definition == definition(reader, schema) and joined.matches(reader.files)


def definition(reader: LogReader, schema: Schema) -> str:
    """Return what the values of counters and histories depend on, besides the files of the log, as text to compare."""
    fields = {"name", "kind", "owner", "column", "transform", "default", "max_length"}
    features = [f.model_dump(mode="json", include=fields) for f in schema.logged.inputs if not f.training_only]
    parts = schema.model_dump(mode="json", include={"counters", "histories", "columns", "tasks"})
    until = {} if reader.until is None else {"until": reader.until.isoformat()}
    return json.dumps({**parts, "features": features, **until})


def _compute(
    events: Events, schema: Schema, work: Path, state: Path | None, earlier: CounterFeatures | None
) -> tuple[dict[str, Numbers], dict[str, HistoryRanges]]:
    """Return the values of each counter and the ranges of each history; write the state."""
    if events.span is None:
        nothing = HistoryRanges.empty(events.rows)
        numbers = {c.name: np.full((len(c.columns), events.rows), np.nan, np.float32) for c in schema.counters}
        return numbers, {history.name: nothing for history in schema.histories}
    numbers, lists = {}, {}
    if earlier is not None and not _precedes(earlier.clock, events):
        if earlier.clock is not None and not _is_whole(earlier.clock, events):
            print_status(
                f"the log does not start after the log of the model, which ends at {earlier.clock.text}: its counters "
                "and histories start empty and count only the impressions of this log"
            )
        earlier = None
    progress = Progress("counters: computing", "counters and histories", len(schema.counters) + len(schema.histories))
    with open_database(events, work) as connection:
        for i, counter in enumerate(schema.counters):
            sums = None if earlier is None else EarlierSums.of(earlier.counters[counter.name])
            query = CounterQuery(connection, events, schema, counter, sums)
            numbers[counter.name] = _new_numbers(work / f"counter-{i}.npy", len(counter.columns), events.rows)
            query.fill(numbers[counter.name])
            if state is not None:
                write_counter_state(state, counter, *query.state())
            progress.advance(1)
        for history in schema.histories:
            lists[history.name] = ranges = history_ranges(connection, events, schema, history, earlier)
            if state is not None:
                write_history_state(state, history, ranges.users, ranges.state())
            progress.advance(1)
    if state is not None:
        since = events.span[0] if earlier is None or earlier.clock is None else earlier.clock.since
        StateClock(events.span[1], events.zone, since).write(state)
    progress.close()
    return numbers, lists


def _precedes(clock: StateClock | None, events: Events) -> bool:
    """Return whether a state ends before the first event, in the same kind of time."""
    if clock is None or events.span is None:
        return False
    return clock.until < events.span[0] and (clock.zone is None) == (events.zone is None)


def _is_whole(clock: StateClock, events: Events) -> bool:
    """Return whether a log has the impressions from the start of a state on, without at most ``MISSING_START``.

    The first impressions of the log may have been those of a user who was forgotten.
    """
    if clock.since is None or events.span is None:
        return False
    return events.span[0] - clock.since <= MISSING_START * (clock.until - clock.since)


def _new_numbers(file: Path, columns: int, rows: int) -> Numbers:
    """Return a new array of NaN [columns, rows] that is stored in a file."""
    numbers: Numbers = np.lib.format.open_memmap(file, "w+", np.float32, (columns, rows))
    numbers[:] = np.nan
    return numbers


def _write_files(
    events: Events,
    schema: Schema,
    joined: JoinedColumns,
    numbers: Mapping[str, Numbers],
    lists: Mapping[str, HistoryRanges],
) -> None:
    """Write the columns of each file of the log, in row groups like those of the file; served values replace computed.

    Raises:
        LogError: a served value does not fit its feature.
    """
    for rows in events.log:
        path = joined.file(rows.file.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = None
        with rows.file.open() as parquet:
            served = ServedValues(rows.file, parquet, schema)
            start = rows.first
            for group, size in enumerate(rows.groups):
                if size:
                    columns = _computed(schema, numbers, lists, start, start + size)
                    table = pa.table(served.replace(columns, group))
                    writer = writer or pq.ParquetWriter(path, table.schema)
                    writer.write_table(table, size)
                start += size
        if writer is None:
            pq.write_table(pa.table(_computed(schema, numbers, lists, start, start)), path)
        else:
            writer.close()


def _computed(
    schema: Schema, numbers: Mapping[str, Numbers], lists: Mapping[str, HistoryRanges], start: int, stop: int
) -> dict[str, pa.Array]:
    """Return the computed columns of a range of rows of the log."""
    columns: dict[str, pa.Array] = {}
    for counter in schema.counters:
        for name, values in zip(counter.columns, numbers[counter.name], strict=True):
            columns[name] = pa.array(values[start:stop], from_pandas=True)
    return columns | {name: ranges.lists(start, stop) for name, ranges in lists.items()}
