"""Scores a log and keeps what measures need: labels, outputs, users, requests and slices, but no features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from pipelines.console import log
from pipelines.data.reader import LogReader, error_context
from pipelines.data.splits import rows_in_range
from pipelines.evaluation.slices import Slice, make_slice
from pipelines.evaluation.sources import Scorer, TimeRange
from pipelines.training.labeled_batch import encode
from ranking.encoding.batch import Float32
from ranking.encoding.vocabulary import hash_column
from ranking.errors import LogError
from ranking.frozen.calibration import Calibration, to_probabilities
from ranking.metrics import Ids, Rows
from ranking.model.gate_stats import GateStatistics
from ranking.schema import Task


@dataclass(frozen=True)
class Predictions:
    """Labels and outputs side by side.

    Attributes:
        tasks: T.
        labels: [rows, tasks], NaN where masked.
        outputs: uncalibrated logits and numbers [rows, tasks].
        calibration: of the outputs.
        users: hash of each row's user [rows].
        requests: hash of each row's request id [rows], 0 if null; None if the schema names no such column.
        slices: rows by the values of features.
        files: names of the log's files.
        places: where each row stands [rows]: index of its file · 2⁴⁰ + position among the file's rows of the span.
    """

    tasks: tuple[Task, ...]
    labels: Float32
    outputs: Float32
    calibration: Calibration
    users: Ids
    requests: Ids | None
    slices: tuple[Slice, ...]
    files: tuple[str, ...]
    places: Ids

    def __len__(self) -> int:
        return len(self.users)

    def known(self, task: int) -> npt.NDArray[np.bool_]:
        """Which rows have the task's label [rows]."""
        return ~np.isnan(self.labels[:, task])

    def take(self, rows: Ids) -> Predictions:
        """The rows at these positions, in their order, without slices."""
        return replace(
            self,
            labels=self.labels[rows],
            outputs=self.outputs[rows],
            users=self.users[rows],
            requests=None if self.requests is None else self.requests[rows],
            slices=(),
            places=self.places[rows],
        )

    def rows(self, task: int, users: Ids, chosen: npt.NDArray[np.generic], *, calibrated: bool = True) -> Rows:
        """Some rows of one task, for its measures.

        Args:
            task: which.
            users: code of each row's user, as the draws number them [rows].
            chosen: mask or positions of rows that have the label.
            calibrated: whether the calibration is applied.
        """
        kind, outputs = self.tasks[task], self.outputs[chosen, task][:, None].astype(np.float64)
        if calibrated:
            outputs = self.calibration(outputs, [kind.name])
        return Rows(
            self.labels[chosen, task].astype(np.float64),
            to_probabilities(outputs, [kind])[:, 0],
            users[chosen],
            None if self.requests is None else self.requests[chosen],
        )


FILE = 1 << 40
"""Rows that a file has at most."""


@torch.no_grad()
def predict(
    source: Scorer, span: TimeRange, slices: Sequence[str] = (), specialisation: GateStatistics | None = None
) -> Predictions:
    """Scores the rows of a log, a batch at a time.

    Args:
        source: what scores.
        span: the rows.
        slices: names of ``Schema.sliceable``.
        specialisation: takes in what the gate does.

    Raises:
        LogError: the log cannot be used, or there is no such row.
    """
    schema, columns = source.schema, source.schema.columns
    reader = LogReader(span.path, schema, dict(source.tables))
    by = tuple(make_slice(name, source.encoder) for name in slices)
    labels, outputs, users, requests, places = [], [], [], [], []
    files: dict[str, int] = {}
    trained_on = 0
    for cleaned in reader.scan(span.since, span.until):
        file = files.setdefault(cleaned.file, len(files))
        if not cleaned.rows.num_rows:
            continue
        with error_context(cleaned.file):
            examples = encode(cleaned.rows, source.encoder)
        found, weights = source.outputs(examples.inputs)
        if specialisation is not None:
            specialisation.add(weights, torch.from_numpy(examples.labels))
        labels.append(examples.labels)
        outputs.append(found.float().numpy())
        users.append(examples.users)
        places.append(file * FILE + cleaned.positions)
        if columns.request is not None:
            requests.append(hash_column(cleaned.rows[columns.request].combine_chunks()))
        for one in by:
            one.add(cleaned.rows, examples.inputs)
        if source.trained_until is not None:
            times = cleaned.rows.select([columns.time])
            trained_on += rows_in_range(times, columns.time, None, source.trained_until).num_rows
    if not users:
        raise LogError("no row to evaluate: move logs.test_from, or name another log with --logs")
    if trained_on:
        log(
            f"{source.name} was trained on what lies before {source.trained_until}, as {trained_on:,} of these do: "
            "if it has seen them, the measures flatter it"
        )
    return Predictions(
        schema.tasks,
        np.concatenate(labels),
        np.concatenate(outputs),
        source.calibration,
        np.concatenate(users),
        np.concatenate(requests) if requests else None,
        by,
        tuple(files),
        np.concatenate(places),
    )
