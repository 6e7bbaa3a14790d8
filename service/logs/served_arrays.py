"""Joins the values of one column of many requests to one Arrow array, without a Python call per value.

A value of a request is in one of the three forms of ``Values``; requests may differ in the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import cast_ids, is_list
from ranking.errors import InvalidInputError
from ranking.schema import InputFeature, NumberFeature, PooledFeature
from service.engine.values import Values

Parts: TypeAlias = Sequence[Values | None]
"""Values of one column, one part per request; None if the request does not have the column."""
Sources: TypeAlias = npt.NDArray[np.uint8]
"""Sources of values, see ``ranking.served_log.schema``."""
MAX_LIST_LENGTH = 10_000
"""Maximum number of elements of a list; the log leaves out longer ones."""


def join_values(parts: Parts, counts: Sequence[int], feature: InputFeature) -> pa.Array:
    """Join the values of all requests.

    Args:
        parts: values of each request.
        counts: number of values of each request.
        feature: feature that defines the type of the column.

    Returns:
        float64 for numbers; int64 or string for ids, and large lists of those; null if no value is set. A list of more
        than ``MAX_LIST_LENGTH`` elements is null.
    """
    values = _join(parts, counts, feature)
    if not isinstance(feature, PooledFeature) or pa.types.is_null(values.type):
        return values
    is_long = pc.fill_null(pc.greater(pc.list_value_length(values), MAX_LIST_LENGTH), False)
    return pc.if_else(is_long, None, values) if pc.any(is_long).as_py() else values


def _join(parts: Parts, counts: Sequence[int], feature: InputFeature) -> pa.Array:
    present = [part for part in parts if part is not None]
    if not present:
        return pa.nulls(sum(counts))
    forms = set(map(type, present))
    if forms == {np.ndarray} and len(present) == len(parts):
        return _from_numpy(np.concatenate(present), feature)
    if forms == {list}:
        blank: list[None] = [None]
        filled = [blank * n if part is None else part for part, n in zip(parts, counts, strict=True)]
        return _from_list(list(chain.from_iterable(filled)), feature)
    return concat_arrays(
        [pa.nulls(n) if part is None else _from_part(part, feature) for part, n in zip(parts, counts, strict=True)]
    )


def concat_arrays(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays whose types differ as those of one column may, see ``common_type``."""
    dtype = common_type([array.type for array in arrays])
    return pa.concat_arrays([cast(array, dtype) for array in arrays])


def common_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of a column whose parts have these types.

    Null gives way to any other type, int64 to string, and float32 to float64; also inside lists.
    """
    distinct = list(dict.fromkeys(dtype for dtype in types if not pa.types.is_null(dtype)))
    if len(distinct) <= 1:
        return distinct[0] if distinct else pa.null()
    if all(map(is_list, distinct)):
        values = common_type([dtype.value_type for dtype in distinct])
        return pa.list_(values) if all(map(pa.types.is_list, distinct)) else pa.large_list(values)
    return pa.float64() if all(map(pa.types.is_floating, distinct)) else pa.string()


def cast(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert values to a type of ``common_type``."""
    return values if values.type == dtype else values.cast(dtype)


def to_id_type(ids: pa.Array, dtype: pa.DataType | None) -> pa.Array:
    """Convert ids, or lists of ids, to the type of the model's ids, if that is known and possible."""
    if dtype is None or pa.types.is_null(ids.type):
        return ids
    if is_list(ids.type):
        values = to_id_type(ids.values, dtype)
        mask = ids.is_null() if ids.null_count else None
        return pa.LargeListArray.from_arrays(ids.offsets, values, mask=mask)
    try:
        return cast_ids(ids, dtype, "")
    except InvalidInputError:  # text that no id of the model equals
        return ids


def to_binary(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return each row of bytes [rows, bytes] as one binary value."""
    count, width = rows.shape
    return pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(np.ascontiguousarray(rows))])


def ids_from_list(ids: list[Any]) -> pa.Array:
    """Return ids as int64, or as strings if some are text; null if none is set."""
    first = next((value for value in ids if value is not None), None)
    if first is None:
        return pa.nulls(len(ids))
    try:
        return pa.array(ids, pa.string() if isinstance(first, str) else pa.int64())
    except (pa.ArrowException, OverflowError):  # both integers and text
        return pa.array([None if value is None else str(value) for value in ids], pa.string())


def _from_part(values: Values, feature: InputFeature) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return _from_numpy(values, feature) if isinstance(values, np.ndarray) else _from_list(list(values), feature)


def _from_numpy(values: npt.NDArray[Any], feature: InputFeature) -> pa.Array:
    return pa.array(values.astype(np.float64, copy=False) if isinstance(feature, NumberFeature) else values)


def _from_list(values: list[Any], feature: InputFeature) -> pa.Array:
    if isinstance(feature, NumberFeature):
        return pa.array(np.array(values, np.float64), from_pandas=True)  # None becomes NaN, and NaN null
    if not isinstance(feature, PooledFeature):
        return ids_from_list(values)
    first = next((value for ids in values if ids for value in ids if value is not None), None)
    dtype = pa.string() if isinstance(first, str) else pa.int64()
    try:
        return pa.array(values, pa.large_list(dtype))
    except (pa.ArrowException, OverflowError):  # both integers and text, in different requests
        texts = [ids and [None if value is None else str(value) for value in ids] for ids in values]
        return pa.array(texts, pa.large_list(pa.string()))
