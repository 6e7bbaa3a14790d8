"""Labels and outputs of the rows of a log: what the metrics need of them, not the features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pipelines.evaluation.slices import Slice
from pipelines.evaluation.spilled_columns import SpilledColumns
from ranking.frozen.calibration import Calibration, Floats, to_probabilities
from ranking.metrics import Ids, LabeledScores, SamplingUnits, UnitDraws
from ranking.model.gate_stats import GateStatistics
from ranking.schema import Owner, Task

MAX_ROWS_PER_FILE = 1 << 40
"""Multiplier of the file index in ``Predictions.positions``; no file has more rows than this."""


def with_file_numbers(positions: Ids, numbers: Ids) -> Ids:
    """Return positions of rows whose files have other indices.

    Args:
        positions: positions, see ``Predictions`` [rows].
        numbers: new index of each file [files].
    """
    return numbers[positions // MAX_ROWS_PER_FILE] * MAX_ROWS_PER_FILE + positions % MAX_ROWS_PER_FILE


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
        gates: statistics of the gate on these rows.
        bad_rows: number of rows by reason that could not be evaluated.
        baselines: predictions of the baselines [rows, baselines, tasks]; None if there are none.
        without_row: outputs as if the row of the user, or of the item, were absent from its table [rows, tasks].
    """

    tasks: tuple[Task, ...]
    labels: SpilledColumns[np.float32]
    outputs: SpilledColumns[np.float32]
    calibration: Calibration
    users: Ids
    days: Ids
    requests: Ids | None
    slices: tuple[Slice, ...]
    files: tuple[str, ...]
    positions: Ids
    gates: GateStatistics
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    baselines: SpilledColumns[np.float32] | None = None
    without_row: Mapping[Owner, SpilledColumns[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def units(self) -> SamplingUnits:
        """Units that the bootstrap draws."""
        return SamplingUnits.of(self.users, self.requests)

    def has_label(self, task: int) -> npt.NDArray[np.bool_]:
        """Return the mask of the rows that have a label for a task [rows]."""
        return ~np.isnan(self.labels.column(task))

    def take(self, rows: Ids) -> Predictions:
        """Return the rows at these indices, in their order, without slices."""
        return replace(
            self,
            labels=self.labels.take(rows),
            outputs=self.outputs.take(rows),
            users=self.users[rows],
            days=self.days[rows],
            requests=None if self.requests is None else self.requests[rows],
            slices=(),
            positions=self.positions[rows],
            baselines=None if self.baselines is None else self.baselines.take(rows),
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
        chosen: slice | npt.NDArray[np.generic] = rows
        if rows.dtype == np.bool_ and rows.all():
            chosen = slice(None)  # without copies
        definition = self.tasks[task]
        outputs: Floats = self.outputs.column(task)[chosen, None].astype(np.float64)
        if calibrated:
            outputs = self.calibration(outputs, [definition.name])
        return LabeledScores(
            self.labels.column(task)[chosen].astype(np.float64),
            to_probabilities(outputs, [definition])[:, 0],
            draws.codes[chosen],
            draws.units.users[chosen],
            None if self.requests is None else self.requests[chosen],
            self.days[chosen],
        )
