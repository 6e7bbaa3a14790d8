"""Default bounds of regression labels, estimated from the training split.

A label that is far outside the others, such as 1e300 in a column of seconds, ruins the training of every task. Bounds
that ``[[tasks]]`` does not set are therefore estimated before the log is profiled. They are robust, because up to a
tenth of the labels may be wrong, and wide, so that the tail of a heavy-tailed distribution is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.config.config import LogsConfig
from pipelines.data.log_schema import to_float64
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import split_range
from ranking.encoding.row_sample import Matrix, Positions, number_sample, row_keys
from ranking.schema import Schema, Task

SAMPLED_LABELS = 100_000
"""Maximum number of rows from which bounds are estimated."""
MIN_LABELS = 20
"""With fewer labels that differ from the median, no bound is estimated."""
MIN_REACH = 100.0
"""Bounds are at least this many times as far from the median as 90 % of the labels."""
TAIL_POWER = 5.0
"""Exponent of the ratio between the 90 % and 50 % quantiles of the distances from the median.

Of a log-normal distribution with σ = 3 or a Pareto distribution with α = 1, fewer than one label in 10⁶ is outside.
"""


def estimate_label_bounds(reader: LogReader, logs: LogsConfig, schema: Schema) -> Schema:
    """Return the schema with a ``min`` and ``max`` for each regression that does not set them.

    Reads the time, label and mask columns of the training split, if there is such a regression.

    Raises:
        LogError: the log cannot be read, or a column is missing or has the wrong type; names the file.
    """
    tasks = [task for task in schema.tasks if task.kind == "regression" and None in (task.min, task.max)]
    if not tasks:
        return schema
    sample, read = number_sample(SAMPLED_LABELS), 0
    columns = {schema.columns.time, *(task.label for task in tasks), *(task.mask for task in tasks if task.mask)}
    for file, rows in reader.read_columns(columns, split_range(logs, "train")):
        with as_log_error(file):
            sample.add(row_keys(np.arange(read, read + len(rows))), partial(_labels, rows, tasks))
        read += len(rows)
    labels = sample.rows()
    if labels is None:
        return schema
    bounds = {task.name: default_bounds(task, labels[:, i]) for i, task in enumerate(tasks)}
    return with_label_bounds(schema, bounds)


def with_label_bounds(schema: Schema, bounds: Mapping[str, Sequence[float | None]]) -> Schema:
    """Return the schema with the ``min`` and ``max`` of the tasks in ``bounds`` replaced."""
    tasks = tuple(
        task.model_copy(update=dict(zip(("min", "max"), bounds[task.name], strict=True)))
        if task.name in bounds
        else task
        for task in schema.tasks
    )
    return schema.model_copy(update={"tasks": tasks})


def label_bounds(schema: Schema) -> dict[str, list[float | None]]:
    """Return the ``min`` and ``max`` of each regression."""
    return {task.name: [task.min, task.max] for task in schema.tasks if task.kind == "regression"}


def default_bounds(task: Task, labels: npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the bounds of a regression: those that it sets, otherwise the default for these labels.

    The default is symmetric about the median. Its distance from the median is derived from the distances of the labels
    that differ from the median: q₉₀ · max(100, (q₉₀ / q₅₀)⁵).

    Args:
        task: the task.
        labels: sample of its labels, before the transform; NaN where null or masked.
    """
    low, high = task.label_range
    labels = labels[(labels >= low) & (labels <= high)]
    median = float(np.median(labels)) if len(labels) else 0.0
    distances = np.abs(labels - median)
    distances = distances[distances > 0]
    if len(distances) < MIN_LABELS:
        return task.min, task.max
    middle, outer = np.quantile(distances, [0.5, 0.9])
    with np.errstate(over="ignore"):
        reach = float(outer * max(MIN_REACH, (outer / middle) ** TAIL_POWER))
    lowest, highest = median - reach, median + reach
    return (
        lowest if task.min is None and lowest > low else task.min,
        highest if task.max is None and highest < high else task.max,
    )


def _labels(table: pa.Table, tasks: Sequence[Task], chosen: Positions) -> Matrix:
    """Return the labels of some rows before the transform [rows, tasks]; NaN where null or masked."""
    rows, columns = table.take(chosen), []
    for task in tasks:
        label = to_float64(rows, task.label, f"the label of '{task.name}'").to_numpy(zero_copy_only=False)
        if task.mask is not None:
            mask = to_float64(rows, task.mask, f"the mask of '{task.name}'").to_numpy(zero_copy_only=False)
            label = np.where(mask == 1.0, label, np.nan)
        columns.append(label)
    return np.stack(columns, axis=1)
