"""Values of one column of a request, and their conversion to numbers, embedding rows, hashes and bags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import Mask, RaggedIds
from ranking.encoding.columns import tail
from ranking.encoding.encoder import Encoder, hash_lists
from ranking.encoding.vocabulary import (
    FloatArray,
    HashBuckets,
    IdArray,
    Vocabulary,
    hash_column,
    hash_values,
    stable_hash,
)
from ranking.errors import InvalidInputError
from ranking.schema import NumberFeature, NumericFeature, PooledFeature, SequenceFeature

Values: TypeAlias = Sequence[Any] | npt.NDArray[Any] | pa.Array
"""Values of a column, one per row, in one of three forms.

A NumPy array of int64 or float64, if all values are set and are numbers. A list of JSON values (numbers, strings and
lists), None for absent ones. An Arrow array in canonical type.
"""


def to_columns(objects: Sequence[Mapping[str, Any] | None]) -> dict[str, list[Any]]:
    """Convert objects to columns; None where an object lacks the name or is None itself."""
    present = [row for row in objects if row is not None]
    if not present:
        return {}
    names = present[0].keys()
    if set(map(len, present)) == {len(names)}:  # usually all objects have the same names
        blank: dict[str, Any] = dict.fromkeys(names)
        filled = present if len(present) == len(objects) else [blank if row is None else row for row in objects]
        try:
            return {name: list(map(itemgetter(name), filled)) for name in names}
        except KeyError:
            pass
    all_names = dict.fromkeys(chain.from_iterable(present))
    return {name: [None if row is None else row.get(name) for row in objects] for name in all_names}


def to_numpy(values: pa.Array) -> Values:
    """Convert an Arrow array of int64 or float64 without nulls to NumPy; return any other as it is."""
    plain = (pa.types.is_int64(values.type) or pa.types.is_float64(values.type)) and not values.null_count
    return values.to_numpy() if plain else values


def to_list(values: Values) -> list[Any]:
    """Convert values to a list of Python objects."""
    if isinstance(values, pa.Array):
        objects: list[Any] = values.to_pylist()
        return objects
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def concat(parts: Sequence[Values]) -> Values:
    """Concatenate values; all parts are NumPy arrays, or all are lists."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))


def take(values: Values, rows: IdArray) -> Values:
    """Select values by position [rows], in the given order."""
    if isinstance(values, pa.Array):
        return values.take(pa.array(rows))
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]


def is_set(values: Values) -> Mask:
    """Return whether each value is set [rows]."""
    if isinstance(values, np.ndarray) or (isinstance(values, pa.Array) and not values.null_count):
        return np.ones(len(values), np.bool_)
    if isinstance(values, pa.Array):
        mask: Mask = values.is_valid().to_numpy(zero_copy_only=False)
        return mask
    return np.array([value is not None for value in values], np.bool_)


def to_float64(columns: Sequence[Values], features: Sequence[NumberFeature]) -> FloatArray:
    """Convert columns of numbers to float64 [rows, columns]; NaN for absent values.

    Args:
        columns: values of each column.
        features: feature that reads each column.

    Raises:
        InvalidInputError: a value is text, NaN, infinite, or at most −1 where the transform is log1p.
    """
    numbers: FloatArray
    try:
        if any(isinstance(values, pa.Array) for values in columns):
            numbers = np.stack([_column_to_float64(values) for values in columns], 1)
        else:
            numbers = np.array(columns, np.float64).T
    except (OverflowError, ValueError):
        numbers = np.stack(list(map(_checked_column_to_float64, columns, features)), 1)
    invalid = ~np.isfinite(numbers)
    if invalid.any() and (invalid := invalid & np.stack([is_set(values) for values in columns], 1)).any():
        raise _invalid_number(invalid, features, "is NaN or infinite: write null for unknown")
    uses_log = [isinstance(feature, NumericFeature) and feature.transform == "log1p" for feature in features]
    if any(uses_log) and (invalid := (numbers <= -1.0) & uses_log).any():
        raise _invalid_number(invalid, features, "is −1 or less, but its transform is log1p")
    return numbers


def _invalid_number(invalid: Mask, features: Sequence[NumberFeature], reason: str) -> InvalidInputError:
    """Return an error about the first invalid value of the first column that has one."""
    column = int(np.argmax(invalid.any(0)))
    return InvalidInputError(features[column].column, reason, int(np.argmax(invalid[:, column])))


def _column_to_float64(values: Values) -> FloatArray:
    if isinstance(values, pa.Array):
        numbers: FloatArray = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return numbers
    return np.array(values, np.float64)


def _checked_column_to_float64(values: Values, feature: NumberFeature) -> FloatArray:
    """Convert one column in which some value may not be a float64."""
    try:
        return _column_to_float64(values)
    except OverflowError:  # an integer beyond the range of float64
        return np.array([None if value is None else _saturating_float(value) for value in values], np.float64)
    except ValueError:  # text, in a column that an id feature reads too
        raise InvalidInputError(feature.column, f"holds text, but '{feature.name}' is a number") from None


def _saturating_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def to_embedding_rows(values: Values, id_mapping: Vocabulary | HashBuckets, column: str) -> IdArray:
    """Map ids to embedding rows [rows]; ``MISSING`` exactly where no id is set.

    Raises:
        InvalidInputError: text that is not an integer, where the vocabulary consists of integers.
    """
    if isinstance(values, pa.Array):
        return id_mapping.rows(values, column)
    return id_mapping.rows_from_values(values, column)


def hash_ids(values: Values) -> IdArray:
    """Hash ids as ``hash_column`` does [rows]."""
    return hash_column(values) if isinstance(values, pa.Array) else hash_values(values)


def to_bag(values: Values, feature: PooledFeature, encoder: Encoder) -> RaggedIds:
    """Map lists of ids to embedding rows; an absent list becomes one missing id, None inside a list is dropped."""
    values = _without_nulls(values, feature)
    if isinstance(values, pa.Array):
        return encoder.encode_bag(values, feature)
    id_mapping = encoder.id_mappings[feature.table]
    assert isinstance(id_mapping, Vocabulary | HashBuckets)
    embedding_rows = id_mapping.rows_from_values(list(chain.from_iterable(values)), feature.column)
    return RaggedIds(embedding_rows, _lengths(values))


def hash_bag(values: Values, feature: PooledFeature) -> RaggedIds:
    """Hash lists of ids as ``hash_lists`` does."""
    values = _without_nulls(values, feature)
    if isinstance(values, pa.Array):
        return hash_lists(values)
    ids = list(chain.from_iterable(values))
    hashes = {value: 0 if value is None else stable_hash(value) for value in set(ids)}
    return RaggedIds(np.array([hashes[value] for value in ids], np.int64), _lengths(values))


def _without_nulls(values: Values, feature: PooledFeature) -> Values:
    """Return lists in their maximum length; outside Arrow, an absent list becomes [None], other None are dropped."""
    if isinstance(values, pa.Array):
        if isinstance(feature, SequenceFeature) and not pa.types.is_null(values.type):
            values = tail(values, feature.max_length)
        return values
    if isinstance(feature, SequenceFeature):
        values = [ids and ids[-feature.max_length :] for ids in values]
    return [[None] if ids is None else [value for value in ids if value is not None] for ids in values]


def _lengths(lists: Values) -> IdArray:
    return np.array([len(ids) for ids in lists], np.int64)
