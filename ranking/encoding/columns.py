"""Feature columns as Arrow: bring them to canonical types, find bad values, look up what is left out.

Training, offline scoring and the service all pass through here, so that one row means the same thing everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.errors import InvalidInputError
from ranking.schema import InputFeature, NumberFeature, NumericFeature, Owner, PooledFeature, Schema, SequenceFeature


def canonical(column: pa.Array, feature: InputFeature) -> pa.Array:
    """The column in the one type of its kind: int64 or string, list of those, or float64.

    Booleans become 0 and 1; whole numbers stored as floats (as pandas does beside nulls) become integers.

    Raises:
        InvalidInputError: the column's type cannot hold such a feature.
    """
    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return column
    if isinstance(feature, NumberFeature):
        if pa.types.is_float64(kind):
            return column
        if _is_number(kind):
            return column.cast(pa.int8() if pa.types.is_boolean(kind) else kind).cast(pa.float64(), safe=False)
        what = "numeric" if isinstance(feature, NumericFeature) else "cut into buckets"
        raise InvalidInputError(feature.column, f"holds {kind}, but '{feature.name}' is {what}: write numbers")
    if feature.kind == "categorical":
        return _ids(column, feature)
    if not _is_list(kind):
        raise InvalidInputError(
            feature.column, f"holds {kind}, but '{feature.name}' is a {feature.kind}: write lists of ids"
        )
    values = _plain(pc.list_flatten(column))  # what lies outside a slice or under a null is no part of the column
    values = values if pa.types.is_null(values.type) else _ids(values, feature)
    offsets = pa.array(np.append(0, np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy())), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values, mask=pc.is_null(column) if column.null_count else None)


def _plain(column: pa.Array) -> pa.Array:
    """One contiguous array, without dictionary encoding or fixed-size lists."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    return column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def _ids(values: pa.Array, feature: InputFeature) -> pa.Array:
    kind = values.type
    if pa.types.is_int64(kind):
        return values
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.string())
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                feature.column, f"'{feature.name}' is a {feature.kind}: its ids must be integers or strings ({error})"
            ) from None
    raise InvalidInputError(
        feature.column, f"holds {kind}, but '{feature.name}' is a {feature.kind}: write integers or strings"
    )


def invalid_rows(table: pa.Table, schema: Schema) -> Iterator[tuple[InputFeature, pa.Array, str]]:
    """Each rule that numbers can break: the feature, which rows break it [rows] bool, and how.

    A number that is NaN or infinite is bad (a null is how a log says "unknown"), and so is log1p of −1 or less.

    Args:
        table: completed rows, see ``fill_features``.
        schema: the features.
    """
    for feature in schema.numbers:
        column = table[feature.column].combine_chunks().cast(pa.float64())
        yield feature, _true(pc.invert(pc.is_finite(column))), "is NaN or infinite: write null for unknown"
        if isinstance(feature, NumericFeature) and feature.transform == "log1p":
            yield feature, _true(pc.less_equal(column, -1.0)), "is −1 or less, but its transform is log1p"


def _true(condition: pa.Array) -> pa.Array:
    return pc.fill_null(condition, False)


def mark(reasons: pa.Array, bad: pa.Array, reason: str) -> pa.Array:
    """``reasons`` [rows] with ``reason`` wherever ``bad`` is true and nothing was found before."""
    return pc.if_else(pc.and_(_true(bad), reasons.is_null()), pa.scalar(reason), reasons)


class FeatureTable:
    """The features of users or items, by id; published with the bundle and looked up when a request leaves one out.

    Args:
        table: one row per id.
        key: the id's column.

    Attributes:
        ids: of the rows, int64 or string.

    Raises:
        InvalidInputError: the id column is missing, holds a null, or names an id twice.
    """

    def __init__(self, table: pa.Table, key: str) -> None:
        if key not in table.column_names:
            raise InvalidInputError(key, f"the id column is missing (found: {', '.join(table.column_names)})")
        ids = table[key].combine_chunks()
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        whole = pa.types.is_integer(ids.type) or pa.types.is_floating(ids.type)
        self.key_type: pa.DataType = pa.int64() if whole else pa.string()
        self.ids = as_type(ids, self.key_type, key)
        values = self.ids.to_pylist()
        self._row = {value: row for row, value in enumerate(values)}
        if None in self._row:
            raise InvalidInputError(key, "an id is null: every row needs one", values.index(None))
        if len(self._row) < len(values):
            first = next(row for row, value in enumerate(values) if self._row[value] != row)
            raise InvalidInputError(key, f"id {values[first]!r} stands twice: keep one row per id", first)
        self.table = table.combine_chunks()
        self.key = key

    def __len__(self) -> int:
        return len(self._row)

    def columns(self, ids: pa.Array, columns: list[str]) -> dict[str, pa.Array]:
        """The asked-for columns, one value per id; null where the id is unknown. Columns it lacks are left out."""
        encoded = ids.dictionary_encode()
        of_unique = pa.array([self._row.get(value) for value in encoded.dictionary.to_pylist()], pa.int64())
        rows = of_unique.take(encoded.indices)
        return {c: self.table[c].combine_chunks().take(rows) for c in columns if c in self.table.column_names}


def fill_features(table: pa.Table, schema: Schema, tables: Mapping[Owner, FeatureTable]) -> pa.Table:
    """The table with every feature column of the schema, canonical, and nothing else touched.

    What the table leaves out (a column, or a null in it) is looked up by id in its owner's table; what is unknown
    there too stays null.

    Raises:
        InvalidInputError: a column has a type that its feature cannot have.
    """
    by_column: dict[str, InputFeature] = {}
    ids = [feature for feature in schema.inputs if not isinstance(feature, NumberFeature)]
    for feature in (*ids, *schema.numbers):  # ids decide: a number can be read from them
        by_column.setdefault(feature.column, feature)
    found: dict[str, pa.Array] = {}
    for owner, lookup in tables.items():
        id_column = schema.id_column(owner)
        if id_column in table.column_names:
            keys = as_type(table[id_column].combine_chunks(), lookup.key_type, str(id_column))
            found |= lookup.columns(keys, schema.columns_of(owner))
    for column, feature in by_column.items():
        given = canonical(table[column], feature) if column in table.column_names else None
        known = canonical(found[column], feature) if column in found else None
        value = _first_known(given, known, feature)
        if value is None:
            value = pa.nulls(table.num_rows)
        table = (
            table.set_column(table.column_names.index(column), column, value)
            if given is not None
            else table.append_column(column, value)
        )
    return table


def _first_known(given: pa.Array | None, known: pa.Array | None, feature: InputFeature) -> pa.Array | None:
    """``given`` with its nulls filled from ``known``; either may be None or of Arrow's null type."""
    if given is None or known is None or given.null_count == 0:
        return known if given is None else given
    if pa.types.is_null(given.type) or pa.types.is_null(known.type):
        return known if pa.types.is_null(given.type) else given
    if not isinstance(feature, PooledFeature):
        return pc.coalesce(given, as_type(known, given.type, feature.column))
    kind = known.type if pa.types.is_null(given.type.value_type) else given.type
    both = pa.concat_arrays([_as_bag(given, kind, feature.column), _as_bag(known, kind, feature.column)])
    rows = np.arange(len(given))  # Arrow's coalesce has no kernel for lists
    return both.take(pa.array(np.where(given.is_valid().to_numpy(zero_copy_only=False), rows, rows + len(given))))


def _as_bag(bags: pa.Array, kind: pa.DataType, field: str) -> pa.Array:
    """Bags whose ids are integers or strings as ``kind`` has them; ``bags`` is canonical."""
    values = bags.values.cast(kind.value_type) if pa.types.is_null(bags.type.value_type) else bags.values
    return pa.LargeListArray.from_arrays(
        bags.offsets, as_type(values, kind.value_type, field), mask=bags.is_null() if bags.null_count else None
    )


def read_column(column: pa.Array, feature: InputFeature) -> pa.Array:
    """What the feature reads in its canonical column: its default for nulls, of a sequence the newest ids.

    Raises:
        InvalidInputError: the default is text where the column holds integers.
    """
    if isinstance(feature, NumberFeature):
        column = column.cast(pa.float64())
    if feature.default is not None and column.null_count:
        default = list(feature.default) if isinstance(feature, PooledFeature) else feature.default
        one = canonical(pa.array([default]), feature)
        try:
            column = _first_known(column, one.take(pa.array(np.zeros(len(column), np.int64))), feature)
        except InvalidInputError:
            reason = f"holds integers, but the default of '{feature.name}' is {default!r}: give an integer"
            raise InvalidInputError(feature.column, reason) from None
    if isinstance(feature, SequenceFeature) and not pa.types.is_null(column.type):
        column = tail(column, feature.max_length)
    return column


def tail(lists: pa.LargeListArray, count: int) -> pa.LargeListArray:
    """The last ``count`` values of each list."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    kept = np.minimum(lengths, count)
    if kept.sum() == lengths.sum():
        return lists
    offsets = np.append(0, np.cumsum(kept))
    positions = np.arange(offsets[-1]) + np.repeat(np.cumsum(lengths) - offsets[1:], kept)
    values = pc.list_flatten(lists).take(pa.array(positions))
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=lists.is_null() if lists.null_count else None)


def id_array(ids: Sequence[int | str | None] | npt.NDArray[Any] | pa.Array) -> pa.Array:
    """Ids as Arrow has them; integers and text mixed, or an integer beyond 64 bits, are all text."""
    if isinstance(ids, pa.Array):
        return ids
    if isinstance(ids, np.ndarray):
        return pa.array(ids)
    kind = pa.string() if len(ids) and isinstance(ids[0], str) else pa.int64()
    try:
        return pa.array(ids, kind)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in ids], pa.string())


def as_type(ids: pa.Array, kind: pa.DataType, field: str) -> pa.Array:
    """Ids as integers or as strings, whichever the ranker knows them as.

    Raises:
        InvalidInputError: text that is no integer where integers are needed.
    """
    if ids.type == kind:
        return ids
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    try:
        return ids.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        known = "integers of 64 bits" if kind == pa.int64() else "strings"
        wrong = next((value for value in ids.to_pylist() if value is not None and not _is_integer(value)), None)
        raise InvalidInputError(
            field, f"ids must be {known} in every row, as in those read before; {wrong!r} is none"
        ) from None


def _is_integer(value: object) -> bool:
    try:
        return -(2**63) <= int(str(value)) < 2**63
    except ValueError:
        return False
