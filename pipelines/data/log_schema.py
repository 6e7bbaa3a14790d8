"""What a log's files must have: the schema's columns, each of one kind in all files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import pyarrow as pa

from pipelines.data.labels import label_columns
from pipelines.data.parquet import LogFile
from ranking.errors import LogError
from ranking.schema import Schema


def required_columns(schema: Schema, *, labels: bool) -> dict[str, str]:
    """The columns that are read, and what each is to the schema."""
    columns = {feature.column: f"feature '{feature.name}'" for feature in schema.inputs}
    columns |= {schema.columns.item: "the item id"}
    if labels:
        columns |= {schema.columns.time: "the time", schema.columns.user: "the user id"}
        columns |= label_columns(schema)
        if schema.columns.request is not None:
            columns.setdefault(schema.columns.request, "the request id")
    return columns


class ColumnCheck:
    """Checks one file after the other.

    Args:
        schema: whose columns they must have.
        labels: whether time, user id and labels are needed.
        looked_up: columns that side tables can give.
        files: all files of the log.
    """

    def __init__(self, schema: Schema, *, labels: bool, looked_up: Iterable[str], files: list[LogFile]) -> None:
        self._schema = schema
        self._labels = labels
        self._looked_up = set(looked_up)
        self._ends = (files[0], files[-1])
        self._first: dict[str, tuple[pa.DataType, str]] = {}

    def check(self, file: LogFile, stored: pa.Schema) -> None:
        """Refuses a file without columns that no side table can give, or with one of another kind than before.

        Raises:
            LogError: names the file, the columns, the file it differs from, and the mend.
        """
        names, columns = {*stored.names, *file.keys}, self._schema.columns
        not_looked_up = {columns.item, columns.user, columns.time, *label_columns(self._schema)}
        asked = required_columns(self._schema, labels=self._labels)
        missing = {c: what for c, what in asked.items() if c not in names | (self._looked_up - not_looked_up)}
        if missing:
            which = ", ".join(f"column '{column}' ({what})" for column, what in missing.items())
            verb = "is" if len(missing) == 1 else "are"
            raise LogError(f"{file.display_name}: {which} {verb} missing{self._hint(list(missing), names)}")
        for column in asked:
            if column in stored.names:
                self._compare(file.display_name, column, stored.field(column).type)
        if self._labels:
            time = stored.field(columns.time).type if columns.time in stored.names else pa.string()
            if not (pa.types.is_timestamp(time) or pa.types.is_date(time)):
                raise LogError(
                    f"{file.display_name}: column '{columns.time}' holds {time}, but is the time: write timestamps"
                )

    def _compare(self, file: str, column: str, kind: pa.DataType) -> None:
        """A column of nothing but nulls may have no type; it fits every other."""
        if pa.types.is_null(kind):
            return
        before, where = self._first.setdefault(column, (kind, file))
        if not same_type(before, kind):
            raise LogError(
                f"{file}: column '{column}' holds {kind}, but {before} in {where}: "
                "write one type in all files, or move the files of one type away"
            )

    def _hint(self, missing: list[str], found: set[str]) -> str:
        """Where missing columns may be: in the log's first or last file, or, a single one, under another name."""
        for other in self._ends:
            try:
                with other.open() as opened:
                    if {*missing} <= {*opened.schema.names}:
                        them = "it" if len(missing) == 1 else "them"
                        return f", but {other.display_name} has {them}: write {them} in all files"
            except (OSError, pa.ArrowException):
                continue
        close = difflib.get_close_matches(missing[0], found, 1) if len(missing) == 1 else []
        return f"; did you mean '{close[0]}'?" if close else f" (found: {', '.join(sorted(found))})"


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of the two types mean the same: widths and units may differ, kinds may not."""
    one, other = _plain(one), _plain(other)
    if pa.types.is_null(one) or pa.types.is_null(other):
        return True
    if isinstance(one, pa.LargeListType) and isinstance(other, pa.LargeListType):
        return same_type(one.value_type, other.value_type)
    return _kind(one) == _kind(other)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Without dictionary encoding; every kind of list is one."""
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
        return "moment" if kind.tz else "local time"
    return "date" if pa.types.is_date(kind) else str(kind)
