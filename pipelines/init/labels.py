"""Guess of the labels: what users did with an item after it was shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.init.column_profile import ColumnProfile, Numbers
from pipelines.init.conversions import finite_numbers, two_values
from pipelines.init.guesses import LeftOut, TaskGuess
from pipelines.init.names import (
    AMOUNTS,
    GENERIC_LABELS,
    RATINGS,
    is_action,
    is_negative,
    is_past,
    is_watch_time,
    words,
)
from ranking.errors import LogError

POSITIVE = {
    "yes",
    "y",
    "true",
    "t",
    "1",
    "positive",
    "pos",
    "click",
    "clicked",
    "buy",
    "bought",
    "like",
    "good",
    "high",
}
"""Texts of the positive class of a label."""
MAX_ZEROS = 0.9
"""Durations that are 0 in more rows are left out: a regression on them would mostly predict 0."""
COPIED = 0.9999
"""Correlation of two labels from which on one is a copy of the other."""
SKEWED = 20.0
"""A label whose 99 % quantile is this many times its median is trained on its logarithm."""


def require_labels(columns: dict[str, ColumnProfile], names: Sequence[str]) -> list[TaskGuess]:
    """Return the tasks of the columns that ``--label`` names.

    Raises:
        LogError: a column cannot be a label; says why.
    """
    tasks = []
    for name in names:
        column = columns[name]
        task = binary_task(column, "--label") or _regression(column, "--label")
        if task is None:
            raise LogError(
                f"--label {name}: {_why_not(column)}; a label is numeric, or has two values such as yes and no"
            )
        tasks.append(task)
    return tasks


def guess_labels(
    columns: dict[str, ColumnProfile], taken: Collection[str], is_attribute: Callable[[str], bool]
) -> tuple[list[TaskGuess], list[LeftOut]]:
    """Return the tasks, and the columns that are left out because they are outcomes but not useful labels.

    Args:
        columns: profiles of all columns.
        taken: columns that have another role.
        is_attribute: whether a column is constant per user or per item, and therefore not an outcome.

    Raises:
        LogError: no column is a label; names the columns and the option that chooses one.
    """
    free = {name: column for name, column in columns.items() if name not in taken}
    tasks, outcomes = find_outcomes(free, is_attribute)
    if not tasks:
        tasks = _last_column(free, is_attribute)
    if not tasks:
        names = ", ".join(f"'{name}'" for name in free)
        raise LogError(
            f"no label found among {names or 'the columns'}: name it with --label COLUMN, which may be repeated"
        )
    copies = _copies(tasks, columns)
    copied = {copy.column for copy in copies}
    return [task for task in tasks if task.column not in copied], [*outcomes, *copies]


def find_outcomes(
    columns: dict[str, ColumnProfile], is_attribute: Callable[[str], bool]
) -> tuple[list[TaskGuess], list[LeftOut]]:
    """Return the columns that are known only after the impression by their names: tasks, and others.

    Args:
        columns: profiles of the columns.
        is_attribute: whether a column is constant per user or per item, and therefore not an outcome.
    """
    tasks: list[TaskGuess] = []
    others: list[LeftOut] = []
    for name, column in columns.items():
        if column.distinct < 2 or not _is_outcome(name) or is_attribute(name):
            continue
        task = _guess_task(column)
        if isinstance(task, TaskGuess):
            tasks.append(task)
        elif task is not None:
            others.append(LeftOut(name, task, leak=True))
    return tasks, others


def _is_outcome(name: str) -> bool:
    """Return whether a name suggests something that is known only after the impression."""
    parts = set(words(name))
    if is_action(name) or is_watch_time(name):
        return True
    generic = bool(parts) and parts <= GENERIC_LABELS
    return not is_past(name) and (generic or bool(parts & (RATINGS | AMOUNTS)))


def _guess_task(column: ColumnProfile) -> TaskGuess | str | None:
    """Return the task of an outcome, the reason why it cannot be one, or None if it is not an outcome after all."""
    name, parts = column.name, set(words(column.name))
    if column.binary:
        unsure = None
        if parts <= GENERIC_LABELS and parts & {"class", "response", "relevance"}:
            unsure = "could also be a feature"
        return binary_task(column, "by its name", unsure)
    if is_watch_time(name) or parts & AMOUNTS:
        task = _regression(column, "by its name, how long or how much")
        if task is None or np.mean(column.finite == 0) > MAX_ZEROS or np.any(column.finite < 0):
            return "known only after the impression; to predict it, name it with --label" if task else None
        return task
    if parts & RATINGS or parts <= GENERIC_LABELS:
        return _regression(column, "by its name", None if parts & RATINGS else "could also be a feature")
    if column.kind in ("integer", "number"):
        return "by its name known only after the impression, and not 0 or 1; to predict it, name it with --label"
    return None


def _last_column(columns: dict[str, ColumnProfile], is_attribute: Callable[[str], bool]) -> list[TaskGuess]:
    """Return the last column as the label if it has two values, as in most tables for classification."""
    last = next(reversed(columns.values()), None)
    if last is None or not last.binary or is_attribute(last.name):
        return []
    task = binary_task(last, "the last column, with two values", "chosen by its place, not by its name")
    return [] if task is None else [task]


def binary_task(column: ColumnProfile, reason: str, unsure: str | None = None) -> TaskGuess | None:
    """Return the task of a column with two values; None for other columns."""
    if not column.binary:
        return None
    negative, positive = _order([value for value, _ in column.counts()])
    counts = dict(column.counts())
    reason = f"{reason}; {counts[positive] / column.known:.2%} of {column.known:,} are {_shown(positive)}"
    decimal = pa.types.is_decimal(column.values.type)
    numeric = column.kind in ("integer", "number") and not decimal and {float(negative), float(positive)} == {0.0, 1.0}
    convert = None
    if column.kind != "boolean" and not numeric:
        convert = two_values(negative, positive)
        reason += f"; converted: {_shown(positive)} is 1, {_shown(negative)} is 0"
    return TaskGuess(column.name, "binary", reason, unsure=unsure, negative=is_negative(column.name), convert=convert)


def _regression(column: ColumnProfile, reason: str, unsure: str | None = None) -> TaskGuess | None:
    if column.kind not in ("integer", "number") or column.distinct < 2 or len(np.unique(column.finite)) < 2:
        return None
    low, middle, high = np.quantile(column.finite, [0, 0.5, 0.99])
    reason = f"{reason}; {low:g} to {column.finite.max():g}, median {middle:g}"
    options = {}
    if low >= 0 and (high > SKEWED * max(middle, 1e-9) or is_watch_time(column.name)):
        options["transform"] = "log1p"
    decimal = pa.types.is_decimal(column.values.type)
    convert = finite_numbers if column.not_finite or decimal else None
    if column.not_finite:
        reason += f"; NaN or infinite in {column.not_finite:,} rows, converted to null"
    return TaskGuess(column.name, "regression", reason, options, unsure, convert=convert)


def _order(values: list[Any]) -> tuple[Any, Any]:
    """Return the negative and the positive one of two values; ``values`` are ordered by frequency."""
    first, second = values
    if not isinstance(first, str):
        return min(values), max(values)
    for value, other in ((first, second), (second, first)):
        if (value.lower() in POSITIVE and other.lower() not in POSITIVE) or value.startswith(">"):
            return other, value
    return first, second  # the rarer one is positive


def _copies(tasks: list[TaskGuess], columns: dict[str, ColumnProfile]) -> list[LeftOut]:
    """Return the regressions whose labels are proportional to those of an earlier one, in another unit."""
    copies: list[LeftOut] = []
    kept: list[str] = []
    for task in tasks:
        if task.kind != "regression":
            continue
        numbers = columns[task.column].numbers
        original = next((other for other in kept if _correlation(numbers, columns[other].numbers) > COPIED), None)
        if original is None:
            kept.append(task.column)
        else:
            copies.append(LeftOut(task.column, f"a copy of the label '{original}'"))
    return copies


def _correlation(a: Numbers, b: Numbers) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    a, b = _scaled(a[both]), _scaled(b[both])
    if len(a) < 3 or not (np.std(a) and np.std(b)):
        return 0.0
    return float(abs(np.corrcoef(a, b)[0, 1]))


def _scaled(numbers: Numbers) -> Numbers:
    """Return numbers between -1 and 1, whose squares do not overflow."""
    largest = np.abs(numbers).max(initial=0.0)
    return numbers / largest if largest else numbers


def _why_not(column: ColumnProfile) -> str:
    if column.kind == "null":
        return "is null in every row"
    if column.distinct < 2:
        return f"is {_shown(column.counts()[0][0])} in every row"
    return f"holds {column.values.type} with {column.distinct:,} distinct values"


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
