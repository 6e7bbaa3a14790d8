"""Convert Arrow columns to the canonical type of their feature and validate their values.

Training, offline scoring and the service share this code, so that a row has the same meaning everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.errors import InvalidInputError
from ranking.schema import InputFeature, NumberFeature, NumericFeature, PooledFeature, Schema, SequenceFeature

DECIMAL_TEXT = "^(0|-?[1-9][0-9]{0,18})$"
"""Pattern of the decimal text of an integer: up to 19 digits without leading zeros."""


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
    if not is_list(dtype):
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


def is_list(dtype: pa.DataType) -> bool:
    """Return whether values of a type are lists of variable size."""
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))


def _is_number(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_decimal(dtype)
    )


def _canonical_ids(values: pa.Array, feature: InputFeature) -> pa.Array:
    try:
        return canonical_ids(values, feature.column)
    except InvalidInputError:
        if _is_number(values.type):
            reason = f"'{feature.name}' is a {feature.kind}: its ids must be integers or strings"
            raise InvalidInputError(feature.column, f"{reason} of at most 64 bits; {_not_integer(values)}") from None
        reason = f"holds {values.type}, but '{feature.name}' is a {feature.kind}: write integers or strings"
        raise InvalidInputError(feature.column, reason) from None


def canonical_ids(ids: pa.Array, field: str) -> pa.Array:
    """Return ids as int64 or string. Integers stored as floats or decimals become integers, booleans 0 and 1.

    A column of nulls becomes text.

    Args:
        ids: array, also dictionary-encoded.
        field: column name for the error message.

    Raises:
        InvalidInputError: an id is neither text nor an integer of 64 bits.
    """
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    dtype = ids.type
    if pa.types.is_int64(dtype) or pa.types.is_string(dtype):
        return ids
    if pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype) or pa.types.is_null(dtype):
        return ids.cast(pa.string())
    if pa.types.is_boolean(dtype):
        return ids.cast(pa.int8()).cast(pa.int64())
    if not _is_number(dtype):
        raise InvalidInputError(field, f"holds {dtype}, but ids are integers or text: write one of the two")
    try:
        return ids.cast(pa.int64())
    except pa.ArrowInvalid:
        raise InvalidInputError(field, f"ids must be integers of 64 bits or text; {_not_integer(ids)}") from None


def _not_integer(numbers: pa.Array) -> str:
    """Name the first number that is not an integer of 64 bits."""
    values = (value for value in numbers.to_pylist() if value is not None)
    wrong = next((v for v in values if not (-(2**63) <= v < 2**63 and v == int(v))), None)
    return f"{wrong} is not"


def invalid_rows(table: pa.Table, schema: Schema) -> Iterator[tuple[InputFeature, pa.Array, str]]:
    """Yield, for each validation rule, the feature, a mask [rows] bool of the rows that violate it, and the reason.

    NaN and infinite numbers are invalid (null is the way to write "unknown"), and so are values ≤ −1 under log1p.

    Args:
        table: rows completed by ``fill_features``.
        schema: the features.
    """
    for feature in schema.numbers:
        column = table[feature.column].combine_chunks().cast(pa.float64(), safe=False)
        yield feature, _null_to_false(pc.invert(pc.is_finite(column))), "is NaN or infinite: write null for unknown"
        if isinstance(feature, NumericFeature) and feature.transform == "log1p":
            yield feature, _null_to_false(pc.less_equal(column, -1.0)), "is −1 or less, but its transform is log1p"


def _null_to_false(condition: pa.Array) -> pa.Array:
    return pc.fill_null(condition, False)


def add_reason(reasons: pa.Array, invalid: pa.Array, reason: str) -> pa.Array:
    """Return ``reasons`` [rows] with ``reason`` set where ``invalid`` is true and no earlier reason is set."""
    return pc.if_else(pc.and_(_null_to_false(invalid), reasons.is_null()), pa.scalar(reason), reasons)


def read_column(column: pa.Array, feature: InputFeature) -> pa.Array:
    """Apply a feature's default and maximum length to its canonical column."""
    if isinstance(feature, NumberFeature):
        column = column.cast(pa.float64(), safe=False)
    if feature.default is not None and column.null_count:
        default = list(feature.default) if isinstance(feature, PooledFeature) else feature.default
        scalar = to_canonical(pa.array([default]), feature)
        column = coalesce(column, scalar.take(pa.array(np.zeros(len(column), np.int64))), feature)
    if isinstance(feature, SequenceFeature) and not pa.types.is_null(column.type):
        column = tail(column, feature.max_length)
    return column


def coalesce(column: pa.Array, fallback: pa.Array, feature: InputFeature) -> pa.Array:
    """Return the feature's column with nulls replaced by the values of ``fallback``.

    Integers and text in one column become text. A vocabulary of integers converts it back.

    Args:
        column: canonical values [rows].
        fallback: canonical values [rows].
        feature: the feature that reads the column.
    """
    if column.null_count == 0 or pa.types.is_null(fallback.type):
        return column
    if pa.types.is_null(column.type):
        return fallback
    if not isinstance(feature, PooledFeature):
        dtype = column.type if column.type == fallback.type else pa.string()
        return pc.coalesce(cast_ids(column, dtype, feature.column), cast_ids(fallback, dtype, feature.column))
    types = {dtype for dtype in (column.type.value_type, fallback.type.value_type) if not pa.types.is_null(dtype)}
    dtype = types.pop() if len(types) == 1 else pa.string()
    both = pa.concat_arrays([_cast_lists(column, dtype, feature.column), _cast_lists(fallback, dtype, feature.column)])
    rows = np.arange(len(column))  # Arrow's coalesce does not support lists.
    return both.take(pa.array(np.where(column.is_valid().to_numpy(zero_copy_only=False), rows, rows + len(column))))


def _cast_lists(lists: pa.Array, dtype: pa.DataType, field: str) -> pa.Array:
    """Return canonical lists of ids with ids of the type ``dtype``."""
    values = cast_ids(lists.values, dtype, field)
    return pa.LargeListArray.from_arrays(lists.offsets, values, mask=lists.is_null() if lists.null_count else None)


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
    """Convert ids to int64 or string. An integer is the same id as its decimal text: 7 as "7", but not as "07".

    Args:
        ids: integers or text.
        dtype: int64 or string.
        field: column name for the error message.

    Raises:
        InvalidInputError: an id is neither text nor an integer, or ``dtype`` is int64 and a text is not the decimal
            text of an integer of 64 bits.
    """
    if ids.type == dtype:
        return ids
    if pa.types.is_null(ids.type) or (pa.types.is_unsigned_integer(ids.type) and dtype == pa.string()):
        return ids.cast(dtype)
    ids = canonical_ids(ids, field)
    if ids.type == dtype or dtype == pa.string():
        return ids.cast(dtype)
    try:
        integers = ids.cast(pa.int64())
    except pa.ArrowInvalid:
        integers = None
    if integers is None or not pc.all(pc.equal(integers.cast(pa.string()), ids), min_count=0).as_py():
        invalid = next(text for text in ids.to_pylist() if text is not None and parse_id(text) is None)
        reason = "ids must be integers of 64 bits in decimal notation, like the known ones"
        raise InvalidInputError(field, f"{reason}; {invalid!r:.80} is not")
    return integers


def holds_integers(ids: pa.Array) -> bool:
    """Return whether ids are integers, or text of which at least one is the decimal text of an integer."""
    return pa.types.is_integer(ids.type) or bool(pc.any(pc.match_substring_regex(ids, DECIMAL_TEXT)).as_py())


def parse_id(text: str) -> int | None:
    """Return the 64-bit integer of which this is the decimal text; None for other text, such as "07", "+7" or "7.0"."""
    value = int(text) if re.fullmatch(DECIMAL_TEXT, text) else 2**63
    return value if -(2**63) <= value < 2**63 else None
