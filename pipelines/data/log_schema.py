"""Schema of a log: required columns, consistent types across files, and valid labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.parquet import LogFile
from ranking.encoding.columns import add_reason, invalid_rows
from ranking.encoding.missing_columns import describe_missing, missing_feature_columns, suggest_column
from ranking.errors import InvalidInputError, LogError
from ranking.schema import Owner, Schema, Task

MAX_WEIGHT = 1e15
"""Largest sample weight: the sum of weighted losses must not overflow float32."""


def required_columns(schema: Schema, *, labels: bool) -> dict[str, str]:
    """Return the columns to read, each with its role in the schema.

    Args:
        schema: features and tasks.
        labels: whether time, user id, labels, masks and weights are required too.
    """
    columns = {feature.column: f"feature '{feature.name}'" for feature in schema.inputs}
    columns |= {schema.columns.item: "the item id"}
    if labels:
        columns |= {schema.columns.time: "the time", schema.columns.user: "the user id"}
        columns |= label_columns(schema)
        if schema.columns.request is not None:
            columns.setdefault(schema.columns.request, "the request id")
    return columns


def label_columns(schema: Schema) -> dict[str, str]:
    """Return the columns that only a log can contain (labels, masks, the sample weight), each with its role."""
    columns = {task.mask: f"mask of task '{task.name}'" for task in schema.tasks if task.mask is not None}
    columns |= {task.label: f"label of task '{task.name}'" for task in schema.tasks}
    if schema.columns.weight is not None:
        columns.setdefault(schema.columns.weight, "the sample weight")
    return columns


class ColumnChecker:
    """Checks the columns of each file against the schema and against the files before it.

    Args:
        schema: features and tasks.
        labels: whether time, user id and labels are required.
        side_columns: columns of each side table.
        files: all files of the log.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        labels: bool,
        side_columns: Mapping[Owner, Collection[str]],
        files: list[LogFile],
    ) -> None:
        self._schema = schema
        self._labels = labels
        self._side_columns = side_columns
        self._first_and_last = (files[0], files[-1])
        self._types: dict[str, tuple[pa.DataType, str]] = {}

    def check(self, file: LogFile, stored: pa.Schema) -> None:
        """Check one file.

        Args:
            file: the file.
            stored: its Arrow schema.

        Raises:
            LogError: a required column is missing and no side table provides it, or its type differs from an earlier
                file; names the file, the column, the other file and the fix.
        """
        names, columns = {*stored.names, *file.keys}, self._schema.columns
        log_only = {columns.item, columns.user, columns.time, *label_columns(self._schema)}
        required = required_columns(self._schema, labels=self._labels)
        lookups = missing_feature_columns(self._schema, names, self._side_columns)
        features = {feature.column for feature in self._schema.inputs}
        missing = {
            column: role
            for column, role in required.items()
            if column not in names and (column in lookups or column in log_only or column not in features)
        }
        missing |= {column: role for column, role in lookups.items() if column not in missing}
        if missing:
            raise LogError(f"{file.display_name}: {describe_missing(missing)}{self._hint(list(missing), names)}")
        for column in required:
            if column in stored.names:
                self._check_type(file.display_name, column, stored.field(column).type)
        for column, role in self._id_columns().items():
            if column in stored.names and not _is_id(stored.field(column).type):
                raise LogError(
                    f"{file.display_name}: column '{column}' holds {stored.field(column).type}, but it is {role}: "
                    "write integers or strings"
                )
        if self._labels:
            kind = stored.field(columns.time).type if columns.time in stored.names else pa.string()
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise LogError(
                    f"{file.display_name}: column '{columns.time}' holds {kind}, but it is the time: write timestamps"
                )

    def _id_columns(self) -> dict[str, str]:
        """Return the columns of ids that are read, each with its role."""
        columns = self._schema.columns
        roles = {columns.item: "the item id", columns.user: "the user id"}
        if columns.request is not None and self._labels:
            roles.setdefault(columns.request, "the request id")
        return roles

    def _check_type(self, file: str, column: str, kind: pa.DataType) -> None:
        """Compare a column's type with that of the first file; the null type matches every type."""
        if pa.types.is_null(kind):
            return
        first_kind, first_file = self._types.setdefault(column, (kind, file))
        if not same_kind(first_kind, kind):
            raise LogError(
                f"{file}: column '{column}' holds {kind}, but {first_kind} in {first_file}: "
                "write one type in all files, or move the files of one type away"
            )

    def _hint(self, missing: list[str], names: set[str]) -> str:
        """Name the first or last file if it has the missing columns; otherwise suggest a similar column name."""
        for other in self._first_and_last:
            try:
                with other.open() as parquet:
                    if {*missing} <= {*parquet.schema.names}:
                        them = "it" if len(missing) == 1 else "them"
                        return f", but {other.display_name} has {them}: write {them} in all files"
            except (OSError, pa.ArrowException):
                continue
        return suggest_column(missing, names)


def _is_id(kind: pa.DataType) -> bool:
    """Return whether a column may hold ids; pandas writes integers as floats if a column has nulls."""
    kind = _normalize(kind)
    return (
        pa.types.is_null(kind)
        or _kind(kind) == "text"
        or (_kind(kind) == "number" and not (pa.types.is_decimal(kind) or pa.types.is_boolean(kind)))
    )


def same_kind(a: pa.DataType, b: pa.DataType) -> bool:
    """Return whether values of two types have the same meaning: widths and units may differ, kinds may not."""
    a, b = _normalize(a), _normalize(b)
    if pa.types.is_null(a) or pa.types.is_null(b):
        return True
    if isinstance(a, pa.LargeListType) and isinstance(b, pa.LargeListType):
        return same_kind(a.value_type, b.value_type)
    return _kind(a) == _kind(b)


def _normalize(kind: pa.DataType) -> pa.DataType:
    """Remove the dictionary encoding, and map every list type to large_list."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        kind = pa.large_list(kind.value_type)
    return kind


def _kind(kind: pa.DataType) -> str:
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_timestamp(kind):
        return "zoned timestamp" if kind.tz else "local timestamp"
    return "date" if pa.types.is_date(kind) else str(kind)


def bad_row_reasons(table: pa.Table, schema: Schema, *, labels: bool) -> pa.Array:
    """Return the reason why each row cannot be used [rows] string; null for a usable row.

    Args:
        table: rows completed by ``fill_features``.
        schema: columns, features and tasks.
        labels: whether time, labels, masks and weights are checked too.

    Raises:
        InvalidInputError: a label, mask or weight column is not numeric.
    """
    reasons = pa.nulls(table.num_rows, pa.string())
    for feature, invalid, rule in invalid_rows(table, schema):
        reasons = add_reason(reasons, invalid, f"feature '{feature.name}' {rule}")
    reasons = add_reason(reasons, table[schema.columns.item].combine_chunks().is_null(), "the item id is null")
    if not labels:
        return reasons
    reasons = add_reason(reasons, table[schema.columns.time].combine_chunks().is_null(), "the time is null")
    return mark_bad_labels(reasons, table, schema)


def mark_bad_labels(reasons: pa.Array, table: pa.Table, schema: Schema) -> pa.Array:
    """Add the reason why a row's labels, masks or weight cannot be used.

    Args:
        reasons: reason per row [rows] string; null for a row that can be used so far.
        table: the rows.
        schema: tasks and columns.

    Returns:
        ``reasons`` with the first fault of each row that had none.

    Raises:
        InvalidInputError: a label, mask or weight column is not numeric.
    """
    for task in schema.tasks:
        reasons = _mark_label(reasons, table, task)
    if schema.columns.weight is not None:
        weight = to_float64(table, schema.columns.weight, "the sample weight")
        invalid = pc.or_(pc.or_(pc.invert(pc.is_finite(weight)), pc.less(weight, 0.0)), pc.greater(weight, MAX_WEIGHT))
        reason = f"weight '{schema.columns.weight}' is negative, NaN, infinite or above {MAX_WEIGHT:g}"
        reasons = add_reason(reasons, invalid, reason)
    return reasons


def _mark_label(reasons: pa.Array, table: pa.Table, task: Task) -> pa.Array:
    label, masked = to_float64(table, task.label, f"the label of '{task.name}'"), pa.scalar(False)
    if task.mask is not None:
        mask = to_float64(table, task.mask, f"the mask of '{task.name}'")
        reasons = add_reason(reasons, _not_binary(mask), f"mask '{task.mask}' is neither 0 nor 1")
        masked = pc.fill_null(pc.not_equal(mask, 1.0), True)
    if task.kind == "binary":
        return add_reason(reasons, _not_binary(label), f"label '{task.label}' is neither 0 nor 1")
    reasons = add_reason(reasons, pc.invert(pc.is_finite(label)), f"label '{task.label}' is NaN or infinite")
    if task.transform == "log1p":
        reason = f"label '{task.label}' is −1 or less, but its transform is log1p"
        reasons = add_reason(reasons, pc.less_equal(label, -1.0), reason)
    low, high = task.label_range
    outside = pc.and_(pc.or_(pc.less(label, low), pc.greater(label, high)), pc.invert(masked))
    reason = f"label '{task.label}' is outside {low:g} to {high:g}, the range of task '{task.name}'"
    return add_reason(reasons, outside, reason)


def masked_labels(table: pa.Table, task: Task) -> pa.Array:
    """Return the labels of a task [rows] float64 before its transform; null where null or masked.

    Raises:
        InvalidInputError: the label or the mask does not hold numbers.
    """
    labels = to_float64(table, task.label, f"the label of '{task.name}'")
    if task.mask is None:
        return labels
    mask = to_float64(table, task.mask, f"the mask of '{task.name}'")
    return pc.if_else(pc.fill_null(pc.equal(mask, 1.0), False), labels, pa.scalar(None, pa.float64()))


def _not_binary(column: pa.Array) -> pa.Array:
    return pc.and_(pc.not_equal(column, 0.0), pc.not_equal(column, 1.0))


def to_float64(table: pa.Table, name: str, role: str) -> pa.Array:
    """Return a column of labels, masks or weights as numbers.

    Raises:
        InvalidInputError: the column does not hold numbers; the message names its role.
    """
    column = table[name].combine_chunks()
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InvalidInputError(name, f"holds {kind}, but it is {role}: write numbers")
    return column.cast(pa.float64(), safe=False)  # integers above 2^53 are rounded
