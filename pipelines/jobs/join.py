"""``ranker join``: attributes feedback to served requests and writes the log that ``ranker train`` reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.console import Progress
from pipelines.counters.database import empty_database
from pipelines.loop.attribution import Attribution, LabelColumns
from pipelines.loop.feedback_files import find_feedback_files, oldest_unfinished, read_events
from pipelines.loop.folder_locks import lock_folders
from pipelines.loop.join_counts import JoinCounts
from pipelines.loop.output import RunWriter, lock_log, new_run
from pipelines.loop.rows import RowLayout, add_labels
from pipelines.loop.served_version import ServedVersion, in_one_zone, open_versions
from pipelines.loop.sources import LoopSources
from pipelines.loop.state import FeedbackState, JoinState
from ranking.artifacts.repository import list_models
from ranking.errors import LogError, UsageError, single_line
from ranking.served_log.reader import (
    DamagedFileError,
    ServedCandidates,
    ServedFile,
    find_served_files,
)
from ranking.temporary_folders import temporary_folder

MICROSECONDS = 1_000_000
MAX_LAG = 86_400 * MICROSECONDS
"""Microseconds after its window for which feedback of an unknown request is kept: a file of the served log can be
collected late."""


def join(sources: LoopSources, log: Path, window: int, until: datetime | None = None) -> JoinCounts:
    """Add the rows of the requests whose window has closed to a log.

    Args:
        sources: the served log and feedback.
        log: folder of the log.
        window: seconds after an impression in which events count.
        until: time at which the window of a request must have closed. Default: now, or the time of the oldest
            unfinished file of feedback if that is earlier.

    Raises:
        LogError: a file cannot be read, or the log was not written by this command.
        BundleError: a version that answered requests is not in the repository.
        UsageError: the served log has requests of several models, or of another one than the log.
        OutputError: the log cannot be written, or memory or disk space run out.
    """
    damaged: dict[Path, DamagedFileError] = {}
    with lock_folders([sources.served, sources.feedback]), lock_log(log):
        while True:
            try:
                return _join_files(sources, log, window, until, damaged)
            except DamagedFileError as error:
                damaged[error.path] = error


def _join_files(
    sources: LoopSources, log: Path, window: int, until: datetime | None, damaged: dict[Path, DamagedFileError]
) -> JoinCounts:
    """Do the same as ``join`` without the damaged files; add those that cannot be opened to them.

    Raises:
        DamagedFileError: the rows of another file are damaged; nothing was written.
    """
    state = JoinState.read(log)
    if until is None:
        until = min(datetime.now(UTC), oldest_unfinished(sources.feedback) or datetime.max.replace(tzinfo=UTC))
    closed = int((until.timestamp() - window) * MICROSECONDS)
    paths = find_served_files(sources.served)
    known: dict[str, int | None] = {p.name: state.served[p.name] for p in paths if p.name in state.served}
    new = []
    for path in paths:
        if known.get(path.name, 0) is not None and path not in damaged:
            try:
                new.append(ServedFile.open(path))
            except DamagedFileError as error:
                damaged[path] = error
    model = _model_of(state, sources, new, log, damaged=bool(damaged))
    files = [file for file in new if file.model == model]
    with (
        temporary_folder("join") as work,
        empty_database(work, f"{log}: feedback cannot be joined") as connection,
    ):
        used = [path for path in find_feedback_files(sources.feedback) if not _is_complete(state, path)]
        damaged_feedback = read_events(connection, used, work)
        counts = JoinCounts(
            until.isoformat(timespec="seconds").replace("+00:00", "Z"),
            left_out=(*map(str, damaged.values()), *damaged_feedback.values()),
        )
        if not files:
            return counts
        versions = open_versions(files, sources.repository)
        versions = in_one_zone(versions, _zone_of(log, list(versions.values())))
        labels = LabelColumns.of([version.schema for version in versions.values()])
        attribution = Attribution(connection, window * MICROSECONDS, labels, sources.shown, state.requests)
        open_requests = 0
        served = {name: time for name, time in known.items() if time is None or sources.served / name in damaged}
        for number, file in enumerate(files):
            remaining = attribution.add(number, file, known.get(file.path.name), closed)
            served[file.path.name] = max(closed, known.get(file.path.name) or closed) if remaining else None
            open_requests += remaining
        attribution.resolve()
        # Requests in damaged files need their feedback later.
        latest = -math.inf if damaged else closed - MAX_LAG
        feedback = _feedback_state(state, attribution, used, damaged_feedback, latest)
        decided: dict[str, Any] = attribution.counts()
        finished = [feedback[path.name] for path in used if feedback[path.name].complete]
        decided["unmatched"] += sum(entry.undecided for entry in finished)
        counts = replace(counts, open_requests=open_requests, **decided)
        after = JoinState(state.run + 1, model, served, feedback, np.append(state.requests, attribution.joined()))
        return _write(log, after, files, RowLayout(files, versions, labels), attribution, counts)


def _model_of(
    state: JoinState, sources: LoopSources, files: Sequence[ServedFile], log: Path, *, damaged: bool
) -> str | None:
    """Return the model whose requests to join: that of the log, or the chosen one; None without files.

    Raises:
        UsageError: another one than that of the log is chosen, or it must be chosen.
    """
    if state.model is not None:
        if sources.model not in (None, state.model):
            raise UsageError(f"{log}: holds the rows of model {state.model}: join {sources.model} into another folder")
        return state.model
    if damaged:  # its requests may be those of the model
        if sources.model is not None:
            return sources.model
        repositories = {sources.repository or file.repository for file in files}
        if len({name for repository in repositories for name in list_models(repository)}) > 1:
            raise UsageError(
                "a damaged file of the served log may be that of another model than the others: name one with --model"
            )
    models = sorted({file.model for file in files})
    if sources.model is not None and models and sources.model not in models:
        raise UsageError(f"--model {sources.model}: the served log has requests of {', '.join(models)}")
    if sources.model is None and len(models) > 1:
        raise UsageError(f"the served log has requests of several models ({', '.join(models)}): name one with --model")
    return sources.model or next(iter(models), None)


def _zone_of(log: Path, versions: Sequence[ServedVersion]) -> str | None:
    """Return the time zone of the rows in a log; that of the newest version if it has none yet."""
    zone, time = versions[-1].zone, versions[-1].schema.columns.time
    for file in sorted(log.glob("run-*/day=*/*.parquet"))[:1]:
        try:
            stored = pq.read_schema(file)
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{file}: cannot be read ({single_line(error)}); restore it") from None
        if time in stored.names:
            zone = stored.field(time).type.tz
    return zone


def _is_complete(state: JoinState, path: Path) -> bool:
    entry = state.feedback.get(path.name)
    return entry is not None and entry.complete


def _feedback_state(
    state: JoinState, attribution: Attribution, used: Sequence[Path], damaged: Collection[Path], latest: float
) -> dict[str, FeedbackState]:
    """Return the state of each file of feedback.

    A file is complete when all its events are decided, or were received before ``latest`` (microseconds), unless lines
    of it are damaged.
    """
    events, decided = attribution.events_by_file(), attribution.decided_by_file()
    feedback = {name: entry for name, entry in state.feedback.items() if entry.complete}
    for path in used:
        count, newest = events.get(str(path), (0, 0))
        earlier = state.feedback.get(path.name, FeedbackState(count, 0, newest)).decided
        entry = FeedbackState(count, earlier + decided.get(str(path), 0), newest)
        complete = path not in damaged and (entry.undecided == 0 or newest < latest)
        feedback[path.name] = replace(entry, complete=complete)
    return feedback


def _write(
    log: Path,
    after: JoinState,
    files: Sequence[ServedFile],
    layout: RowLayout,
    attribution: Attribution,
    counts: JoinCounts,
) -> JoinCounts:
    """Write the rows and the state of a run, unless no window closed."""
    selected = [(number, file, attribution.rows(number)) for number, file in enumerate(files)]
    requests = sum(len(rows) for _, _, rows in selected)
    if not requests:
        return counts
    positive: Counter[str] = Counter()
    impressions = rows_written = 0
    progress = Progress("joining", "requests", requests)
    with new_run(log, after.run) as folder:
        writer = RunWriter(folder, layout.columns.time)
        for _, file, rows in selected:
            if not len(rows):
                continue
            candidates = ServedCandidates(file, rows)
            table = layout.rows(file, candidates)
            labels, is_row = attribution.labels(candidates.shared("request_id"), candidates.items("item_id"))
            joined = add_labels(table, labels, is_row)
            impressions, rows_written = impressions + table.num_rows, rows_written + joined.num_rows
            for name in layout.labels.names:
                positive[name] += _positive(joined[name], name in layout.labels.binary)
            writer.write(joined, file.version)
            progress.advance(len(rows))
        writer.close(after)
    progress.close(summary=False)
    return replace(counts, requests=requests, impressions=impressions, rows=rows_written, labels=positive)


def _positive(column: pa.ChunkedArray, binary: bool) -> int:
    """Return the number of rows with a positive binary label, or with a numeric one."""
    return int((pc.sum(column).as_py() or 0) if binary else len(column) - column.null_count)
