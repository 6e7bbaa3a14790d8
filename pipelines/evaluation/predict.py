"""Score the rows of a log with a model, in this process or by parts with an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.console import print_status
from pipelines.counters.columns import joined_columns
from pipelines.data.file_scans import FileCall, scan_files
from pipelines.data.reader import LogReader, ScannedChunk
from pipelines.data.user_share import describe_share
from pipelines.engines import Engine, kept_processes
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.scored_rows import DAY, REQUEST, USER, PredictBaselines, ScoredRows, score_rows
from pipelines.evaluation.sources import LogRange, Scorer, load_scorer
from ranking.errors import LogError
from ranking.free_memory import return_free_memory
from ranking.model.gate_stats import GateStatistics


class NoRowsError(LogError):
    """A time range of a log, or its share of the users, has no row to evaluate."""


class _Scoring:
    """Common part of the scoring of all files of a log.

    A worker of an engine loads the model itself, by the path that is its name, and uses one thread.

    Args:
        source: the model.
        log_range: the rows to score.
        slices: slice names.
        baselines: predictions of the baselines.
    """

    def __init__(
        self, source: Scorer, log_range: LogRange, slices: Sequence[str], baselines: PredictBaselines | None
    ) -> None:
        self.log_range, self.slices, self.baselines = log_range, slices, baselines
        self._source: Scorer | None = source
        self._model, self._selection = Path(source.name).absolute(), source.selection

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker gets."""
        return self.__dict__ | {"_source": None}

    @property
    def source(self) -> Scorer:
        """The model."""
        if self._source is None:
            torch.set_num_threads(1)
            self._source = load_scorer(self._model, self._selection)
        return self._source

    def open_log(self) -> LogReader:
        """Open the log."""
        path, until, source = self.log_range.path, self.log_range.time_range.until, self.source
        return LogReader(path, source.schema, dict(source.tables), until=until)


@kept_processes()
def predict(
    source: Scorer,
    log_range: LogRange,
    slices: Sequence[str] = (),
    baselines: PredictBaselines | None = None,
    engine: Engine | None = None,
) -> Predictions:
    """Score the rows of a log.

    Args:
        source: the model.
        log_range: the rows to score.
        slices: slice names, each in ``Schema.sliceable``.
        baselines: predictions of the baselines, which are added to those of the model.
        engine: scores the files of the log, each by one of its workers. Workers read the model, whose name is its
            path, the log and the folder for temporary files under the same paths as this process. Default: this
            process scores all rows.

    Raises:
        LogError: the log cannot be used.
        NoRowsError: the time range contains no usable row of these users.
        OutputError: the folder for temporary files, which holds labels and scores, cannot be written.
    """
    scoring, rows = _Scoring(source, log_range, slices, baselines), ScoredRows.empty(source, slices)
    reader = scoring.open_log()
    call = FileCall(scoring.open_log, _score_file, scoring, log_range.time_range, log_range.users)
    with joined_columns(reader, source.schema, log_range.features, source.counter_features) as joined:
        for part in scan_files(reader.with_joined(joined), call, "scoring", engine):
            rows.extend(part)
            return_free_memory()
    return _predictions(source, log_range, rows)


def _score_file(chunks: Iterator[ScannedChunk], _: int, scoring: _Scoring) -> ScoredRows:
    """Score the rows of a file."""
    return score_rows(scoring.source, chunks, scoring.slices, scoring.baselines)


def _predictions(source: Scorer, log_range: LogRange, rows: ScoredRows) -> Predictions:
    """Report what users should know of the rows, and return them."""
    if rows.bad_rows:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in rows.bad_rows.most_common())
        print_status(f"{rows.bad_rows.total():,} bad rows are not evaluated: {reasons} (the first is {rows.first_bad})")
    if not rows.chunks:
        fix = "" if log_range.users == 1 else "increase evaluation.users or --users, "
        raise NoRowsError(
            f"there are no rows{describe_share(log_range.users)} to evaluate: {fix}move logs.test_from, or specify "
            "another log with --logs"
        )
    if rows.training_rows:
        print_status(
            f"{source.name} was trained on data before {source.trained_until}, and {rows.training_rows:,} of these "
            "rows are from that period: if training used them, the metrics are too good"
        )
    if rows.validation_rows > rows.training_rows:
        print_status(
            f"{source.name} was validated on data from {source.trained_until} to {source.validated_until}, and "
            f"{rows.validation_rows - rows.training_rows:,} of these rows are from that period, which chose its "
            "weights and calibration: its metrics are too good"
        )
    gates = GateStatistics(source.schema.tasks, source.num_experts)
    for statistics in rows.gates:
        gates.extend(statistics)
    return Predictions(
        source.schema.tasks,
        rows.labels,
        rows.outputs,
        source.calibration,
        rows.ids.column(USER),
        rows.ids.column(DAY),
        None if source.schema.columns.request is None else rows.ids.column(REQUEST),
        rows.slices,
        tuple(rows.files),
        rows.positions(),
        gates,
        dict(rows.bad_rows),
        rows.baselines,
        rows.without_row,
    )
