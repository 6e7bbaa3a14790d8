"""Score a log and keep what the metrics need: labels, outputs, users, days, requests and slices, not features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from pipelines.console import print_status
from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import TimeRange, local_days
from pipelines.data.user_share import describe_share
from pipelines.evaluation.slices import Slice, make_slice, simulates_absence, without_row
from pipelines.evaluation.sources import LogRange, Scorer
from pipelines.inspection.profile import first_bad_row
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import Float32
from ranking.encoding.vocabulary import hash_column
from ranking.errors import LogError
from ranking.frozen.calibration import Calibration, to_probabilities
from ranking.metrics import Ids, LabeledScores, SamplingUnits, UnitDraws
from ranking.model.gate_stats import GateStatistics
from ranking.schema import ID_OWNERS, Owner, Task

MAX_ROWS_PER_FILE = 1 << 40
"""Multiplier of the file index in ``Predictions.positions``; no file has more rows than this."""

PredictBaselines = Callable[[pa.Table, LabeledBatch], Float32]
"""Predicts probabilities or numbers [rows, baselines, tasks] from rows of a log and the same rows encoded."""


class NoRowsError(LogError):
    """A time range of a log, or its share of the users, has no row to evaluate."""


@dataclass(frozen=True)
class Predictions:
    """Labels and model outputs of the same rows.

    Attributes:
        tasks: the T tasks.
        labels: labels [rows, tasks], NaN where masked.
        outputs: uncalibrated logits (binary tasks) and predicted numbers (regression tasks) [rows, tasks].
        calibration: calibration of the outputs.
        users: hash of each row's user id [rows], 0 if null.
        days: number of each row's calendar day in the time zone of the time column [rows].
        requests: hash of each row's request id [rows], 0 if null; None if the schema has no request column.
        slices: the rows grouped by feature values.
        files: names of the log's files.
        positions: unique position of each row [rows]: file index · 2⁴⁰ + row number within the file's time range.
        bad_rows: number of rows by reason that could not be evaluated.
        baselines: predictions of the baselines [rows, baselines, tasks]; None if there are none.
        without_row: outputs as if the row of the user, or of the item, were absent from its table [rows, tasks].
    """

    tasks: tuple[Task, ...]
    labels: Float32
    outputs: Float32
    calibration: Calibration
    users: Ids
    days: Ids
    requests: Ids | None
    slices: tuple[Slice, ...]
    files: tuple[str, ...]
    positions: Ids
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    baselines: Float32 | None = None
    without_row: Mapping[Owner, Float32] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def units(self) -> SamplingUnits:
        """Units that the bootstrap draws."""
        return SamplingUnits.of(self.users, self.requests)

    def has_label(self, task: int) -> npt.NDArray[np.bool_]:
        """Return the mask of the rows that have a label for a task [rows]."""
        return ~np.isnan(self.labels[:, task])

    def take(self, rows: Ids) -> Predictions:
        """Return the rows at these indices, in their order, without slices."""
        return replace(
            self,
            labels=self.labels[rows],
            outputs=self.outputs[rows],
            users=self.users[rows],
            days=self.days[rows],
            requests=None if self.requests is None else self.requests[rows],
            slices=(),
            positions=self.positions[rows],
            baselines=None if self.baselines is None else self.baselines[rows],
        )

    def task_rows(
        self, task: int, draws: UnitDraws, rows: npt.NDArray[np.generic], *, calibrated: bool = True
    ) -> LabeledScores:
        """Return rows of one task as the input of its metrics.

        Args:
            task: index of the task.
            draws: bootstrap draws of the units of all rows.
            rows: mask or indices of rows that have the label.
            calibrated: whether to apply the calibration.
        """
        definition, outputs = self.tasks[task], self.outputs[rows, task][:, None].astype(np.float64)
        if calibrated:
            outputs = self.calibration(outputs, [definition.name])
        return LabeledScores(
            self.labels[rows, task].astype(np.float64),
            to_probabilities(outputs, [definition])[:, 0],
            draws.codes[rows],
            draws.units.users[rows],
            None if self.requests is None else self.requests[rows],
            self.days[rows],
        )


@torch.no_grad()
def predict(
    source: Scorer,
    log_range: LogRange,
    slices: Sequence[str] = (),
    gate_statistics: GateStatistics | None = None,
    baselines: PredictBaselines | None = None,
) -> Predictions:
    """Score the rows of a log batch by batch.

    Args:
        source: the model.
        log_range: the rows to score.
        slices: slice names, each in ``Schema.sliceable``.
        gate_statistics: updated with the gate weights of each batch.
        baselines: predictions of the baselines, which are added to those of the model.

    Raises:
        LogError: the log cannot be used.
        NoRowsError: the time range contains no usable row of these users.
    """
    reader = LogReader(log_range.path, source.schema, dict(source.tables), until=log_range.time_range.until)
    with joined_columns(reader, source.schema, log_range.features, source.derived) as joined:
        return _predict(source, reader.with_joined(joined), log_range, slices, gate_statistics, baselines)


def _predict(
    source: Scorer,
    reader: LogReader,
    log_range: LogRange,
    slices: Sequence[str],
    gate_statistics: GateStatistics | None,
    baselines: PredictBaselines | None,
) -> Predictions:
    schema, columns = source.schema, source.schema.columns
    row_slices = tuple(make_slice(name, source.encoder) for name in slices if not simulates_absence(name, schema))
    simulated = any(simulates_absence(name, schema) for name in slices)
    outputs_without: dict[Owner, list[Float32]] = {o: [] for o in ID_OWNERS if simulated and schema.columns_of(o)}
    labels, outputs, users, days, requests, positions = [], [], [], [], [], []
    baseline_outputs = []
    files: dict[str, int] = {}
    training_rows = validation_rows = 0  # the latter includes the former
    bad_rows, first_bad = Counter[str](), None
    for chunk in reader.scan(log_range.time_range, users=log_range.users):
        file = files.setdefault(chunk.file, len(files))
        bad_rows.update(chunk.bad["reason"].to_pylist())
        first_bad = first_bad or first_bad_row(chunk.bad)
        if not chunk.rows.num_rows:
            continue
        with as_log_error(chunk.file):
            batch = LabeledBatch.from_table(chunk.rows, source.encoder)
        batch_outputs, weights = source.forward(batch.inputs)
        if gate_statistics is not None:
            gate_statistics.add(weights, torch.from_numpy(batch.labels))
        labels.append(batch.labels)
        outputs.append(batch_outputs.float().numpy())
        for owner, parts in outputs_without.items():
            inputs = source.encoder.encode(without_row(chunk.rows, schema, owner))
            parts.append(source.forward(inputs)[0].float().numpy())
        if baselines is not None:
            baseline_outputs.append(baselines(chunk.rows, batch))
        users.append(batch.users)
        days.append(local_days(chunk.rows[columns.time]).cast(pa.int32()).to_numpy().astype(np.int64))
        positions.append(file * MAX_ROWS_PER_FILE + chunk.positions)
        if columns.request is not None:
            requests.append(hash_column(chunk.rows[columns.request].combine_chunks()))
        for row_slice in row_slices:
            row_slice.add(chunk.rows, batch.inputs)
        if source.trained_until is not None:
            times = chunk.rows.select([columns.time])
            training_rows += _rows_before(source.trained_until, times)
            if source.validated_until is not None:
                validation_rows += _rows_before(source.validated_until, times)
    if bad_rows:
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in bad_rows.most_common())
        print_status(f"{bad_rows.total():,} bad rows are not evaluated: {reasons} (the first is {first_bad})")
    if not users:
        fix = "" if log_range.users == 1 else "increase evaluation.users or --users, "
        raise NoRowsError(
            f"there are no rows{describe_share(log_range.users)} to evaluate: {fix}move logs.test_from, or specify "
            "another log with --logs"
        )
    if training_rows:
        print_status(
            f"{source.name} was trained on data before {source.trained_until}, and {training_rows:,} of these rows are "
            "from that period: if training used them, the metrics are too good"
        )
    if validation_rows > training_rows:
        print_status(
            f"{source.name} was validated on data from {source.trained_until} to {source.validated_until}, and "
            f"{validation_rows - training_rows:,} of these rows are from that period, which chose its weights and "
            "calibration: its metrics are too good"
        )
    return Predictions(
        schema.tasks,
        np.concatenate(labels),
        np.concatenate(outputs),
        source.calibration,
        np.concatenate(users),
        np.concatenate(days),
        np.concatenate(requests) if requests else None,
        row_slices,
        tuple(files),
        np.concatenate(positions),
        dict(bad_rows),
        np.concatenate(baseline_outputs) if baseline_outputs else None,
        {owner: np.concatenate(parts) for owner, parts in outputs_without.items()},
    )


def _rows_before(until: datetime, times: pa.Table) -> int:
    """Return the number of rows of a table with one column of times that are earlier than a time."""
    (column,) = times.schema
    if getattr(column.type, "tz", None) is None:  # another log than that of the training
        until = until.replace(tzinfo=None)
    return int(TimeRange(until=until).select(times, column.name).num_rows)
