"""Score rows of a log with a model, batch by batch, and collect what the metrics need of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import torch

from pipelines.data.reader import ScannedChunk, as_log_error
from pipelines.data.splits import TimeRange, local_days
from pipelines.evaluation.predictions import MAX_ROWS_PER_FILE
from pipelines.evaluation.slices import Slice, make_slice, simulates_absence, without_row
from pipelines.evaluation.sources import Scorer
from pipelines.evaluation.spilled_columns import SpilledColumns
from pipelines.inspection.profile import first_bad_row
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import Float32
from ranking.encoding.vocabulary import hash_column
from ranking.metrics import Ids
from ranking.model.gate_stats import GateStatistics
from ranking.schema import ID_OWNERS, Owner

PredictBaselines = Callable[[pa.Table, LabeledBatch], Float32]
"""Predicts probabilities or numbers [rows, baselines, tasks] from rows of a log and the same rows encoded."""


USER, DAY, ROW, REQUEST = range(4)
"""Columns of ``ScoredRows.ids``."""


@dataclass
class ScoredRows:
    """Rows with their labels and outputs; see ``Predictions``.

    Attributes:
        labels: labels [rows, tasks].
        outputs: outputs [rows, tasks].
        ids: user, day, row number within the file, and request, 0 if there is none [rows, 4].
        baselines: predictions of the baselines [rows, baselines, tasks]; None before the first row, or without them.
        files: index of each file by its name in messages.
        chunks: file and number of rows of each chunk.
        first_bad: position of the first bad row, for messages; None without bad rows.
        training_rows: number of rows from the time of the training data.
        validation_rows: number of rows from the time of the training or validation data.
    """

    slices: tuple[Slice, ...]
    labels: SpilledColumns[np.float32]
    outputs: SpilledColumns[np.float32]
    ids: SpilledColumns[np.int64]
    without_row: dict[Owner, SpilledColumns[np.float32]]
    baselines: SpilledColumns[np.float32] | None = None
    gates: list[GateStatistics] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    bad_rows: Counter[str] = field(default_factory=Counter)
    first_bad: str | None = None
    training_rows: int = 0
    validation_rows: int = 0

    @classmethod
    def empty(cls, source: Scorer, slices: Sequence[str]) -> ScoredRows:
        """Return no rows of a model, with these slices."""
        schema = source.schema
        tasks = len(schema.tasks)
        simulated = any(simulates_absence(name, schema) for name in slices)
        return cls(
            tuple(make_slice(name, source.encoder) for name in slices if not simulates_absence(name, schema)),
            SpilledColumns(np.float32, tasks),
            SpilledColumns(np.float32, tasks),
            SpilledColumns(np.int64, 4),
            {o: SpilledColumns(np.float32, tasks) for o in ID_OWNERS if simulated and schema.columns_of(o)},
        )

    def positions(self) -> Ids:
        """Return the position of each row, see ``Predictions`` [rows]."""
        files, counts = np.array(self.chunks, np.int64).T
        return np.repeat(files * MAX_ROWS_PER_FILE, counts) + self.ids.column(ROW)

    def extend(self, other: ScoredRows) -> None:
        """Append the rows of a later part of the log."""
        numbers = [self.files.setdefault(name, len(self.files)) for name in other.files]
        self.chunks += [(numbers[file], rows) for file, rows in other.chunks]
        self.labels.extend(other.labels)
        self.outputs.extend(other.outputs)
        self.ids.extend(other.ids)
        self.gates += other.gates
        for owner, columns in self.without_row.items():
            columns.extend(other.without_row[owner])
        if self.baselines is None:
            self.baselines = other.baselines
        elif other.baselines is not None:
            self.baselines.extend(other.baselines)
        for row_slice, others in zip(self.slices, other.slices, strict=True):
            row_slice.extend(others)
        self.bad_rows += other.bad_rows
        self.first_bad = self.first_bad or other.first_bad
        self.training_rows += other.training_rows
        self.validation_rows += other.validation_rows


@torch.no_grad()
def score_rows(
    source: Scorer, chunks: Iterator[ScannedChunk], slices: Sequence[str], baselines: PredictBaselines | None
) -> ScoredRows:
    """Score the rows of a log batch by batch.

    Args:
        source: the model.
        chunks: the rows.
        slices: slice names, each in ``Schema.sliceable``.
        baselines: predictions of the baselines, which are added to those of the model.

    Raises:
        LogError: the log cannot be used.
    """
    schema, columns = source.schema, source.schema.columns
    rows = ScoredRows.empty(source, slices)
    for chunk in chunks:
        file = rows.files.setdefault(chunk.file, len(rows.files))
        rows.bad_rows.update(chunk.bad["reason"].to_pylist())
        rows.first_bad = rows.first_bad or first_bad_row(chunk.bad)
        if not chunk.rows.num_rows:
            continue
        with as_log_error(chunk.file):
            batch = LabeledBatch.from_table(chunk.rows, source.encoder)
        outputs, weights = source.forward(batch.inputs)
        gates = GateStatistics(schema.tasks, source.num_experts)
        gates.add(weights, torch.from_numpy(batch.labels))
        rows.gates.append(gates)
        rows.labels.append(batch.labels)
        rows.outputs.append(outputs.float().numpy())
        for owner, absent in rows.without_row.items():
            inputs = source.encoder.encode(without_row(chunk.rows, schema, owner))
            absent.append(source.forward(inputs)[0].float().numpy())
        if baselines is not None:
            predictions = baselines(chunk.rows, batch)
            if rows.baselines is None:
                rows.baselines = SpilledColumns(np.float32, *predictions.shape[1:])
            rows.baselines.append(predictions)
        ids = np.zeros((len(batch), 4), np.int64)
        ids[:, USER], ids[:, ROW] = batch.users, chunk.positions
        ids[:, DAY] = local_days(chunk.rows[columns.time]).cast(pa.int32()).to_numpy()
        if columns.request is not None:
            ids[:, REQUEST] = hash_column(chunk.rows[columns.request].combine_chunks())
        rows.ids.append(ids)
        rows.chunks.append((file, len(batch)))
        for row_slice in rows.slices:
            row_slice.add(chunk.rows, batch.inputs)
        if source.trained_until is not None:
            times = chunk.rows.select([columns.time])
            rows.training_rows += _rows_before(source.trained_until, times)
            if source.validated_until is not None:
                rows.validation_rows += _rows_before(source.validated_until, times)
    return rows


def _rows_before(until: datetime, times: pa.Table) -> int:
    """Return the number of rows of a table with one column of times that are earlier than a time."""
    (column,) = times.schema
    if getattr(column.type, "tz", None) is None:  # another log than that of the training
        until = until.replace(tzinfo=None)
    return int(TimeRange(until=until).select(times, column.name).num_rows)
