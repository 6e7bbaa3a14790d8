"""The columns that training and evaluation need beyond the features, and what makes a row of theirs bad."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import add_reason
from ranking.errors import InvalidInputError
from ranking.schema import Schema, Task


def label_columns(schema: Schema) -> dict[str, str]:
    """Columns that only a log can hold, each with what it is: labels, masks, the sample weight."""
    columns = {task.mask: f"mask of task '{task.name}'" for task in schema.tasks if task.mask is not None}
    columns |= {task.label: f"label of task '{task.name}'" for task in schema.tasks}
    if schema.columns.weight is not None:
        columns.setdefault(schema.columns.weight, "the sample weight")
    return columns


def mark_labels(reasons: pa.Array, table: pa.Table, schema: Schema) -> pa.Array:
    """``reasons`` [rows] with what is wrong with each row's labels, masks or weight; null where nothing is.

    Raises:
        InvalidInputError: a column that holds no numbers.
    """
    for task in schema.tasks:
        reasons = _mark_label(reasons, table, task)
        if task.mask is not None:
            mask = _numbers(table, task.mask, f"the mask of '{task.name}'")
            reasons = add_reason(reasons, _neither(mask), f"mask '{task.mask}' is neither 0 nor 1")
    if schema.columns.weight is not None:
        weight = _numbers(table, schema.columns.weight, "the sample weight")
        wrong = pc.or_(pc.invert(pc.is_finite(weight)), pc.less(weight, 0.0))
        reasons = add_reason(reasons, wrong, f"weight '{schema.columns.weight}' is negative, NaN or infinite")
    return reasons


def _mark_label(reasons: pa.Array, table: pa.Table, task: Task) -> pa.Array:
    label = _numbers(table, task.label, f"the label of '{task.name}'")
    if task.kind == "binary":
        return add_reason(reasons, _neither(label), f"label '{task.label}' is neither 0 nor 1")
    reasons = add_reason(reasons, pc.invert(pc.is_finite(label)), f"label '{task.label}' is NaN or infinite")
    if task.transform == "log1p":
        reasons = add_reason(reasons, pc.less_equal(label, -1.0), f"label '{task.label}' is −1 or less, but log1p")
    return reasons


def _neither(column: pa.Array) -> pa.Array:
    return pc.and_(pc.not_equal(column, 0.0), pc.not_equal(column, 1.0))


def _numbers(table: pa.Table, name: str, what: str) -> pa.Array:
    column = table[name].combine_chunks()
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InvalidInputError(name, f"holds {kind}, but is {what}: write numbers")
    return column.cast(pa.float64())
