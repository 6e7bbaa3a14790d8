"""Scores the rows of a log with a bundle, for ``ranker score``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pipelines.config.uri import Uri, redact_uri
from pipelines.console import Progress, print_status
from pipelines.data.reader import LogReader, ScannedChunk, as_log_error
from pipelines.data.row_group_writer import RowGroupWriter
from pipelines.inspection.profile import open_quarantine, write_bad_rows
from ranking.artifacts.atomic_files import write_errors
from ranking.encoding.columns import canonical_ids
from ranking.errors import LogError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import ID_OWNERS

MAX_EMPTY_SHARE = 0.5
"""Share of the feature columns above which a log without any of their values is taken for that of another model."""


@dataclass
class ScoringCounts:
    """Numbers of scored rows.

    Attributes:
        counts: number of ``scored`` and of ``bad`` rows, and of scored rows with ``unseen_users`` and ``unseen_items``.
        empty: feature columns without a value in any row.
        included: number of rows that the counters of the bundle already include.
    """

    empty: set[str]
    counts: Counter[str] = field(default_factory=lambda: Counter(scored=0, bad=0))
    included: int = 0

    def add(self, other: ScoringCounts) -> None:
        """Add other rows."""
        self.empty &= other.empty
        self.counts.update(other.counts)
        self.included += other.included


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
        self._id_columns = {owner: str(schema.id_column(owner)) for owner in ID_OWNERS if ranker.knows_ids(owner)}
        # Columns without a value in the log are expected to be ids, or to be computed.
        given = {schema.columns.user, schema.columns.item, *schema.counter_columns}
        inputs = (feature for feature in schema.inputs if not feature.training_only)
        self.features = list(dict.fromkeys(feature.column for feature in inputs if feature.column not in given))

    def schema(self) -> pa.Schema:
        """Return the columns of the scores, which have the types of the first file.

        Raises:
            LogError: the log cannot be read or is empty.
        """
        for chunk in self.reader.scan(drop_duplicates=False):
            return self._score(chunk, ScoringCounts(set(self.features))).schema
        raise self._empty_log()

    def score(
        self,
        out: Path,
        quarantine: Path,
        file: str | None = None,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> ScoringCounts:
        """Score every row; duplicates are kept.

        Args:
            out: Parquet file for the scores.
            quarantine: JSON Lines file for the bad rows; removed if there are none.
            file: name of the only file to score; default: all files.
            schema: columns of the scores; default: those of the first file.
            progress: advanced by the number of scored rows.

        Raises:
            LogError: a file cannot be read, or there are no rows and no ``schema``.
            OutputError: a file cannot be written.
        """
        scored = ScoringCounts(set(self.features))
        reader = self.reader if file is None else self.reader.with_file(file)
        try:
            with write_errors(out), RowGroupWriter(out) as writer, open_quarantine(quarantine) as bad_rows:
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
        finally:
            if not scored.counts["bad"]:
                quarantine.unlink(missing_ok=True)
        return scored

    def _score(self, chunk: ScannedChunk, scored: ScoringCounts) -> pa.Table:
        """Return ids, time and scores of the rows of a chunk, and add them to what is known.

        Raises:
            LogError: the chunk cannot be scored, or an id or the time has the name of a score.
        """
        ranker, columns = self._ranker, self._ranker.schema.columns
        names = [c for c in (columns.user, columns.item, columns.time) if c in chunk.rows.column_names]
        with as_log_error(chunk.file):
            rows = ranker.derive(chunk.rows)
            scored.empty = {name for name in scored.empty if rows[name].null_count == rows.num_rows}
            if ranker.counter_features is not None:
                scored.included += ranker.counter_features.count_included(chunk.rows)
            scores = ranker.to_table(ranker.score_completed(rows, self.tasks)[0], self.tasks)
        for name in set(names) & set(scores.column_names):
            raise LogError(
                f"{chunk.file}: column '{name}' has the name of a score: rename it in the log and in [columns], and "
                "train again"
            )
        table = pa.table({c: chunk.rows[c] for c in names} | {c: scores[c] for c in scores.column_names})
        scored.counts.update(scored=table.num_rows, bad=chunk.bad.num_rows)
        for owner, column in self._id_columns.items():
            if column in table.column_names:
                with as_log_error(chunk.file):
                    unseen = ranker.count_unseen(owner, canonical_ids(table[column].combine_chunks(), column))
                scored.counts[f"unseen_{owner}s"] += unseen
        return table

    def check(self, scored: ScoringCounts, quarantine: Path, *, allow_missing: bool) -> None:
        """Report what users should know of the scores of the whole log.

        Raises:
            LogError: it lacks the values of most feature columns, and ``allow_missing`` is false.
        """
        empty, counter_features = (
            [name for name in self.features if name in scored.empty],
            self._ranker.counter_features,
        )
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
        if scored.included and counter_features is not None and counter_features.clock is not None:
            print_status(
                f"{scored.included:,} rows are not after {counter_features.clock.text}, the end of the counters: their "
                "counters and histories contain impressions that were not known yet; do not measure the model with "
                "these scores"
            )

    def _empty_log(self) -> LogError:
        return LogError(f"{redact_uri(self._logs)}: the log is empty: there are no rows to score")


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
