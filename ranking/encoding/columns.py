"""Convert Arrow columns to the canonical type of their feature and validate their values.

Training, offline scoring and the service share this code, so that a row has the same meaning everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.errors import InvalidInputError
from ranking.schema import InputFeature, NumberFeature, NumericFeature, PooledFeature, Schema, SequenceFeature


def to_canonical(column: pa.Array, feature: InputFeature) -> pa.Array:
    """Return the column in the canonical type of its feature: int64 or string, lists of those, or float64.

    Booleans become 0 and 1. Integers stored as floats (pandas does so in columns with nulls) become integers.

    Raises:
        InvalidInputError: the column's type is not valid for the feature.
    """
    column = _decoded(column)
    dtype = column.type
    if pa.types.is_null(dtype):
        return column
    if isinstance(feature, NumberFeature):
        if pa.types.is_float64(dtype):
            return column
        if _is_number(dtype):
            return column.cast(pa.int8() if pa.types.is_boolean(dtype) else dtype).cast(pa.float64(), safe=False)
        usage = "numeric" if isinstance(feature, NumericFeature) else "cut into buckets"
        raise InvalidInputError(feature.column, f"holds {dtype}, but '{feature.name}' is {usage}: write numbers")
    if feature.kind == "categorical":
        return _canonical_ids(column, feature)
    if not _is_list(dtype):
        raise InvalidInputError(
            feature.column, f"holds {dtype}, but '{feature.name}' is a {feature.kind}: write lists of ids"
        )
    values = _decoded(pc.list_flatten(column))  # drops values outside a slice or under a null
    values = values if pa.types.is_null(values.type) else _canonical_ids(values, feature)
    offsets = pa.array(np.append(0, np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy())), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values, mask=pc.is_null(column) if column.null_count else None)


def _decoded(column: pa.Array) -> pa.Array:
    """Return one contiguous array without dictionary encoding or fixed-size lists."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_type))
    return column


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))


def _is_number(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_decimal(dtype)
    )


def _canonical_ids(values: pa.Array, feature: InputFeature) -> pa.Array:
    dtype = values.type
    if pa.types.is_int64(dtype):
        return values
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return values.cast(pa.string())
    if pa.types.is_boolean(dtype):
        return values.cast(pa.int8()).cast(pa.int64())
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                feature.column, f"'{feature.name}' is a {feature.kind}: its ids must be integers or strings ({error})"
            ) from None
    raise InvalidInputError(
        feature.column, f"holds {dtype}, but '{feature.name}' is a {feature.kind}: write integers or strings"
    )


def invalid_rows(table: pa.Table, schema: Schema) -> Iterator[tuple[InputFeature, pa.Array, str]]:
    """Yield, for each validation rule, the feature, a mask [rows] bool of the rows that violate it, and the reason.

    NaN and infinite numbers are invalid (null is the way to write "unknown"), and so are values ≤ −1 under log1p.

    Args:
        table: rows completed by ``fill_features``.
        schema: the features.
    """
    for feature in schema.numbers:
        column = table[feature.column].combine_chunks().cast(pa.float64())
        yield feature, _null_to_false(pc.invert(pc.is_finite(column))), "is NaN or infinite: write null for unknown"
        if isinstance(feature, NumericFeature) and feature.transform == "log1p":
            yield feature, _null_to_false(pc.less_equal(column, -1.0)), "is −1 or less, but its transform is log1p"


def _null_to_false(condition: pa.Array) -> pa.Array:
    return pc.fill_null(condition, False)


def add_reason(reasons: pa.Array, invalid: pa.Array, reason: str) -> pa.Array:
    """Return ``reasons`` [rows] with ``reason`` set where ``invalid`` is true and no earlier reason is set."""
    return pc.if_else(pc.and_(_null_to_false(invalid), reasons.is_null()), pa.scalar(reason), reasons)


def read_column(column: pa.Array, feature: InputFeature) -> pa.Array:
    """Apply a feature's default and maximum length to its canonical column.

    Raises:
        InvalidInputError: the default is text but the column holds integers.
    """
    if isinstance(feature, NumberFeature):
        column = column.cast(pa.float64())
    if feature.default is not None and column.null_count:
        default = list(feature.default) if isinstance(feature, PooledFeature) else feature.default
        scalar = to_canonical(pa.array([default]), feature)
        try:
            column = coalesce(column, scalar.take(pa.array(np.zeros(len(column), np.int64))), feature)
        except InvalidInputError:
            reason = f"holds integers, but the default of '{feature.name}' is {default!r}: give an integer"
            raise InvalidInputError(feature.column, reason) from None
    if isinstance(feature, SequenceFeature) and not pa.types.is_null(column.type):
        column = tail(column, feature.max_length)
    return column


def coalesce(column: pa.Array, fallback: pa.Array, feature: InputFeature) -> pa.Array:
    """Return the feature's column with nulls replaced by the values of ``fallback``.

    Args:
        column: canonical values [rows].
        fallback: canonical values [rows].
        feature: the feature that reads the column.

    Raises:
        InvalidInputError: the ids of ``fallback`` cannot be cast to the type of ``column``.
    """
    if column.null_count == 0 or pa.types.is_null(fallback.type):
        return column
    if pa.types.is_null(column.type):
        return fallback
    if not isinstance(feature, PooledFeature):
        return pc.coalesce(column, cast_ids(fallback, column.type, feature.column))
    dtype = fallback.type if pa.types.is_null(column.type.value_type) else column.type
    both = pa.concat_arrays([_cast_lists(column, dtype, feature.column), _cast_lists(fallback, dtype, feature.column)])
    rows = np.arange(len(column))  # Arrow's coalesce does not support lists.
    return both.take(pa.array(np.where(column.is_valid().to_numpy(zero_copy_only=False), rows, rows + len(column))))


def _cast_lists(lists: pa.Array, dtype: pa.DataType, field: str) -> pa.Array:
    """Return canonical lists of ids with values of the list type ``dtype``."""
    values = lists.values.cast(dtype.value_type) if pa.types.is_null(lists.type.value_type) else lists.values
    return pa.LargeListArray.from_arrays(
        lists.offsets, cast_ids(values, dtype.value_type, field), mask=lists.is_null() if lists.null_count else None
    )


def tail(lists: pa.LargeListArray, count: int) -> pa.LargeListArray:
    """Return the last ``count`` values of each list."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    kept = np.minimum(lengths, count)
    if kept.sum() == lengths.sum():
        return lists
    offsets = np.append(0, np.cumsum(kept))
    positions = np.arange(offsets[-1]) + np.repeat(np.cumsum(lengths) - offsets[1:], kept)
    values = pc.list_flatten(lists).take(pa.array(positions))
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=lists.is_null() if lists.null_count else None)


def to_id_array(ids: Sequence[int | str | None] | npt.NDArray[Any] | pa.Array) -> pa.Array:
    """Return ids as an Arrow array of int64, or of strings if they mix both or exceed 64 bits."""
    if isinstance(ids, pa.Array):
        return ids
    if isinstance(ids, np.ndarray):
        return pa.array(ids)
    dtype = pa.string() if len(ids) and isinstance(ids[0], str) else pa.int64()
    try:
        return pa.array(ids, dtype)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in ids], pa.string())


def cast_ids(ids: pa.Array, dtype: pa.DataType, field: str) -> pa.Array:
    """Cast ids to int64 or string.

    Args:
        ids: integers or text.
        dtype: int64 or string.
        field: column name for the error message.

    Raises:
        InvalidInputError: ``dtype`` is int64 and an id is not an integer.
    """
    if ids.type == dtype:
        return ids
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    try:
        return ids.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        expected = "integers of 64 bits" if dtype == pa.int64() else "strings"
        invalid = next((value for value in ids.to_pylist() if value is not None and not _is_integer(value)), None)
        raise InvalidInputError(
            field, f"ids must be {expected} in every row, like the ids read before; {invalid!r} is not"
        ) from None


def _is_integer(value: object) -> bool:
    try:
        return -(2**63) <= int(str(value)) < 2**63
    except ValueError:
        return False
