"""``ranker score``: scores a log or a table of candidates in batches, in this process or by an engine."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import torch

from pipelines.config.uri import Uri, redact_uri
from pipelines.console import Progress, print_status
from pipelines.data.reader import LogReader, ScannedChunk, as_log_error
from pipelines.data.row_group_writer import RowGroupWriter
from pipelines.inspection.profile import open_quarantine, write_bad_rows
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import atomic_directory, check_creatable, check_writable, os_error_text
from ranking.encoding.columns import canonical_ids
from ranking.errors import LogError, OutputError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import ID_OWNERS

MAX_EMPTY_SHARE = 0.5
"""Share of the feature columns above which a log without any of their values is taken for that of another model."""

Engine = Callable[[Callable[["Part"], "ScoredRows"], Sequence["Part"]], Iterable["ScoredRows"]]
"""Function that calls a function for each part of a log, in any order, and yields the results; see ``engines``."""


@dataclass
class ScoredRows:
    """What is known of scored rows.

    Attributes:
        counts: number of ``scored`` and of ``bad`` rows, and of scored rows with ``unseen_users`` and ``unseen_items``.
        empty: feature columns without a value in any row.
        included: number of rows that the counters of the bundle already include.
    """

    empty: set[str]
    counts: Counter[str] = field(default_factory=lambda: Counter(scored=0, bad=0))
    included: int = 0

    def add(self, other: ScoredRows) -> None:
        """Add other rows."""
        self.empty &= other.empty
        self.counts.update(other.counts)
        self.included += other.included


class Part(NamedTuple):
    """Files of a log that an engine scores together.

    Attributes:
        bundle: folder of the bundle.
        logs: the log.
        tasks: tasks to score.
        files: names of the files.
        schema: columns of the scores.
        out: Parquet file for the scores.
        quarantine: JSON Lines file for the bad rows.
    """

    bundle: Path
    logs: Uri
    tasks: tuple[str, ...]
    files: tuple[str, ...]
    schema: pa.Schema
    out: Path
    quarantine: Path


class LogScorer:
    """Scores files of a log.

    Args:
        ranker: the ranker.
        logs: Parquet file or folder; labels are not needed.
        tasks: tasks to score; None: all.

    Raises:
        LogError: the log cannot be read.
        InvalidInputError: a task is unknown or named twice.
    """

    def __init__(self, ranker: FrozenRanker, logs: Uri, tasks: Sequence[str] | None) -> None:
        self._ranker, self._logs = ranker, logs
        self.tasks = ranker.tasks(tasks)
        self.reader = LogReader(logs, ranker.schema, dict(ranker.tables), labels=False)
        schema = ranker.schema
        self._id_columns = {
            owner: str(schema.id_column(owner)) for owner in ID_OWNERS if ranker.known_ids(owner) is not None
        }
        given = {
            schema.columns.user,
            schema.columns.item,
            *schema.derived_columns,
        }  # Ids, and columns that are computed.
        inputs = (feature for feature in schema.inputs if not feature.training_only)
        self.features = list(dict.fromkeys(feature.column for feature in inputs if feature.column not in given))

    def schema(self) -> pa.Schema:
        """Return the columns of the scores, which have the types of the first file.

        Raises:
            LogError: the log cannot be read or is empty.
        """
        for chunk in self.reader.scan(drop_duplicates=False):
            return self._score(chunk, ScoredRows(set(self.features))).schema
        raise self._empty_log()

    def score(
        self,
        out: Path,
        quarantine: Path,
        files: Collection[str] | None = None,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> ScoredRows:
        """Score every row; duplicates are kept.

        Args:
            out: Parquet file for the scores.
            quarantine: JSON Lines file for the bad rows; removed if there are none.
            files: names of the files; default: all.
            schema: columns of the scores; default: those of the first file.
            progress: advanced by the number of scored rows.

        Raises:
            LogError: a file cannot be read, or there are no rows and no ``schema``.
            OutputError: a file cannot be written.
        """
        scored = ScoredRows(set(self.features))
        reader = self.reader if files is None else self.reader.with_files(files)
        try:
            with RowGroupWriter(out) as writer, open_quarantine(quarantine) as bad_rows:
                if schema is not None:
                    writer.write(schema.empty_table())
                for chunk in reader.scan(drop_duplicates=False):
                    write_bad_rows(chunk.bad, bad_rows)
                    table = self._score(chunk, scored)
                    schema = schema or table.schema
                    writer.write(_cast(table, schema, chunk.file))
                    if progress is not None:
                        progress.advance(table.num_rows)
                if schema is None:
                    raise self._empty_log()
        except OSError as error:
            raise OutputError(f"{out}: cannot be written ({os_error_text(error)})") from None
        finally:
            if not scored.counts["bad"]:
                quarantine.unlink(missing_ok=True)
        return scored

    def _score(self, chunk: ScannedChunk, scored: ScoredRows) -> pa.Table:
        """Return ids, time and scores of the rows of a chunk, and add them to what is known."""
        ranker, columns = self._ranker, self._ranker.schema.columns
        names = [c for c in (columns.user, columns.item, columns.time) if c in chunk.rows.column_names]
        with as_log_error(chunk.file):
            rows = ranker.derive(chunk.rows)
            scored.empty = {name for name in scored.empty if rows[name].null_count == rows.num_rows}
            if ranker.derived is not None:
                scored.included += ranker.derived.count_included(chunk.rows)
            scores = ranker.to_table(ranker.score_completed(rows, self.tasks)[0], self.tasks)
        table = pa.table({c: chunk.rows[c] for c in names} | {c: scores[c] for c in scores.column_names})
        scored.counts.update(scored=table.num_rows, bad=chunk.bad.num_rows)
        for owner, column in self._id_columns.items():
            if column in table.column_names:
                with as_log_error(chunk.file):
                    unseen = ranker.count_unseen(owner, canonical_ids(table[column].combine_chunks(), column))
                scored.counts[f"unseen_{owner}s"] += unseen
        return table

    def check(self, scored: ScoredRows, quarantine: Path, *, allow_missing: bool) -> None:
        """Report what users should know of the scores of the whole log.

        Raises:
            LogError: it lacks the values of most feature columns, and ``allow_missing`` is false.
        """
        empty, derived = [name for name in self.features if name in scored.empty], self._ranker.derived
        if len(empty) > MAX_EMPTY_SHARE * len(self.features) and not allow_missing:
            raise LogError(
                f"{redact_uri(self._logs)}: {len(empty)} of {len(self.features)} feature columns have no value in any "
                f"row ({', '.join(empty)}): is this a log of this model? If all its users and items are new, "
                "add --allow-missing"
            )
        if scored.counts["bad"]:
            print_status(f"{scored.counts['bad']:,} bad rows were not scored, see {quarantine}")
        if empty:
            print_status(
                f"no row has a value of {', '.join(empty)}: is this a log of this model? Missing values were scored as "
                "such"
            )
        if scored.included and derived is not None and derived.clock is not None:
            print_status(
                f"{scored.included:,} rows are not after {derived.clock.text}, the end of the counters: their counters "
                "and histories contain impressions that were not known yet; do not measure the model with these scores"
            )

    def _empty_log(self) -> LogError:
        return LogError(f"{redact_uri(self._logs)}: the log is empty: there are no rows to score")


def score_log(
    ranker: FrozenRanker,
    logs: Uri,
    out: Path,
    tasks: Sequence[str] | None = None,
    *,
    allow_missing: bool = False,
) -> dict[str, int]:
    """Score every row of a log; duplicates are kept, bad rows are written to ``OUT.quarantine.jsonl``.

    Args:
        ranker: the ranker.
        logs: Parquet file or folder; labels are not needed.
        out: Parquet file for the ids of each row, its time (if any), a column per task and ``score``, by which a
            service sorts.
        tasks: tasks to score; default: all.
        allow_missing: score although most feature columns have no value in any row.

    Returns:
        Number of ``scored`` and of ``bad`` rows, and of scored rows with ``unseen_users`` and ``unseen_items``, if the
        ranker knows the ids of users or items.

    Raises:
        LogError: the log cannot be read, is empty, or lacks the values of most feature columns.
        OutputError: ``out`` cannot be written.
        InvalidInputError: a task is unknown or named twice.
    """
    ranker.tasks(tasks)
    check_writable(out)
    scorer, draft, quarantine = LogScorer(ranker, logs, tasks), out.with_name(f".{out.name}.draft"), _quarantine(out)
    progress = Progress("scoring", unit="rows")
    try:
        scored = scorer.score(draft, quarantine, progress=progress)
        progress.close()
        scorer.check(scored, quarantine, allow_missing=allow_missing)
        draft.replace(out)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written ({os_error_text(error)})") from None
    finally:
        draft.unlink(missing_ok=True)
    return dict(scored.counts)


def score_parts(
    folder: Path,
    logs: Uri,
    out: Path,
    engine: Engine,
    tasks: Sequence[str] | None = None,
    *,
    allow_missing: bool = False,
) -> dict[str, int]:
    """Score every row of a log as ``score_log`` does, but let an engine score the files, each by one of its workers.

    Workers read the bundle and the log, and write to a folder beside ``out``, under the same paths as this process. A
    file that is scored again, because its worker was killed, is not counted twice.

    Args:
        folder: the bundle.
        logs: Parquet file or folder; labels are not needed.
        out: new folder for a Parquet file per file of the log, in the same order.
        engine: the engine.
        tasks: tasks to score; default: all.
        allow_missing: score although most feature columns have no value in any row.

    Returns:
        As ``score_log``.

    Raises:
        As ``score_log``, and BundleError: the bundle cannot be loaded.
    """
    ranker = bundle.load(folder)
    ranker.tasks(tasks)
    check_creatable(out)
    scorer, quarantine = LogScorer(ranker, logs, tasks), _quarantine(out)
    names, schema = tuple(task.name for task in scorer.tasks), scorer.schema()
    scored, progress = ScoredRows(set(scorer.features)), Progress("scoring", unit="rows")
    with atomic_directory(out) as draft:
        parts = [
            Part(folder.absolute(), logs, names, (file.name,), schema, *_files_of_part(draft, number))
            for number, file in enumerate(scorer.reader.files)
        ]
        for result in engine(score_part, parts):
            scored.add(result)
            progress.advance(result.counts["scored"])
        progress.close()
        _collect_bad_rows([part.quarantine for part in parts], quarantine)
        for abandoned in draft.glob(".*"):
            abandoned.unlink()
        scorer.check(scored, quarantine, allow_missing=allow_missing)
    return dict(scored.counts)


def score_part(part: Part) -> ScoredRows:
    """Score a part of a log in a worker of an engine, with one thread; see ``LogScorer.score``.

    Its files replace those of an earlier attempt, which may still be running if an engine has lost sight of it.
    """
    torch.set_num_threads(1)
    files = part.out, part.quarantine
    scores, bad_rows = (file.with_name(f".{uuid4().hex}") for file in files)
    result = _worker_scorer(part.bundle, part.logs, part.tasks).score(scores, bad_rows, part.files, part.schema)
    for draft, file in zip((scores, bad_rows), files, strict=True):
        if draft.exists():
            draft.replace(file)
    return result


@cache
def _worker_scorer(folder: Path, logs: Uri, tasks: tuple[str, ...]) -> LogScorer:
    """Return the scorer of this worker, which loads the bundle once for all of its parts."""
    return LogScorer(bundle.load(folder), logs, tasks)


def _files_of_part(folder: Path, number: int) -> tuple[Path, Path]:
    name = f"part-{number:05d}"
    return folder / f"{name}.parquet", folder / f".{name}.quarantine.jsonl"


def _quarantine(out: Path) -> Path:
    return out.with_name(f"{out.name}.quarantine.jsonl")


def _collect_bad_rows(parts: Sequence[Path], quarantine: Path) -> None:
    """Move the bad rows of all parts to one file; without any, the file of an earlier run is removed."""
    quarantine.unlink(missing_ok=True)
    for part in parts:
        if part.exists():
            with part.open("rb") as source, quarantine.open("ab") as target:
                shutil.copyfileobj(source, target)
            part.unlink()


def _cast(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    """Cast a table to the schema of the first file.

    Raises:
        LogError: the ids or the time of this file have other types.
    """
    try:
        return table.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise LogError(
            f"{file}: its ids or time differ from those of earlier files ({error}); write the same types in all files"
        ) from None
