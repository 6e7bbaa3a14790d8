"""Values of one column as a request gives them → numbers, embedding rows, hashes, bags."""

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
from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import FloatArray, HashBuckets, IdArray, Vocabulary, hash_column, hash_values
from ranking.errors import InvalidInputError
from ranking.schema import NumberFeature, NumericFeature, PooledFeature, SequenceFeature

Values: TypeAlias = Sequence[Any] | npt.NDArray[Any] | pa.Array
"""One a row: an array, int64 or float64, where all are given and are numbers; else JSON's numbers, strings and lists,
None where the request gives none; or Arrow's, canonical."""


def to_columns(objects: Sequence[Mapping[str, Any] | None]) -> dict[str, list[Any]]:
    """The objects' values by name, None where an object has none or is None itself."""
    known = [each for each in objects if each is not None]
    if not known:
        return {}
    names = known[0].keys()
    if set(map(len, known)) == {len(names)}:  # as one program writes them: all have the same names
        blank: dict[str, Any] = dict.fromkeys(names)
        filled = known if len(known) == len(objects) else [blank if each is None else each for each in objects]
        try:
            return {name: list(map(itemgetter(name), filled)) for name in names}
        except KeyError:
            pass
    every = dict.fromkeys(chain.from_iterable(known))
    return {name: [None if each is None else each.get(name) for each in objects] for name in every}


def to_numpy(values: pa.Array) -> Values:
    """Arrow's values as an array, if they can be."""
    plain = (pa.types.is_int64(values.type) or pa.types.is_float64(values.type)) and not values.null_count
    return values.to_numpy() if plain else values


def to_list(values: Values) -> list[Any]:
    """Values as Python has them."""
    if isinstance(values, pa.Array):
        listed: list[Any] = values.to_pylist()
        return listed
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def concat(parts: Sequence[Values]) -> Values:
    """The values of all parts, which are of one kind and not Arrow's."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))


def take(values: Values, rows: IdArray) -> Values:
    """The values at these positions [rows], in their order."""
    if isinstance(values, pa.Array):
        return values.take(pa.array(rows))
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]


def is_set(values: Values) -> Mask:
    """Where a value is given [rows]."""
    if isinstance(values, np.ndarray):
        return np.ones(len(values), np.bool_)
    if isinstance(values, pa.Array):
        mask: Mask = values.is_valid().to_numpy(zero_copy_only=False)
        return mask
    return np.array([value is not None for value in values], np.bool_)


def numbers(columns: Sequence[Values], features: Sequence[NumberFeature]) -> FloatArray:
    """Values of columns as float64 [rows, columns], NaN where none is given.

    Args:
        columns: of numbers.
        features: that read them.

    Raises:
        InvalidInputError: one that is NaN, infinite, no number, or −1 or less before log1p.
    """
    found: FloatArray
    try:
        if any(isinstance(values, pa.Array) for values in columns):
            found = np.stack([_floats(values) for values in columns], 1)
        else:
            found = np.array(columns, np.float64).T
    except (OverflowError, ValueError):
        found = np.stack([_read(values, feature) for values, feature in zip(columns, features, strict=True)], 1)
    bad = ~np.isfinite(found)
    if bad.any() and (bad := bad & np.stack([is_set(values) for values in columns], 1)).any():
        raise _invalid(bad, features, "is NaN or infinite: write null for unknown")
    logs = [isinstance(feature, NumericFeature) and feature.transform == "log1p" for feature in features]
    if any(logs) and (low := (found <= -1.0) & logs).any():
        raise _invalid(low, features, "is −1 or less, but its transform is log1p")
    return found


def _invalid(wrong: Mask, features: Sequence[NumberFeature], reason: str) -> InvalidInputError:
    column = int(np.argmax(wrong.any(0)))
    return InvalidInputError(features[column].column, reason, int(np.argmax(wrong[:, column])))


def _floats(values: Values) -> FloatArray:
    if isinstance(values, pa.Array):
        found: FloatArray = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return found
    return np.array(values, np.float64)


def _read(values: Values, feature: NumberFeature) -> FloatArray:
    """One column alone, where not all values are numbers that fit."""
    try:
        return _floats(values)
    except OverflowError:  # an integer beyond all floats
        return np.array([None if value is None else _as_float(value) for value in values], np.float64)
    except ValueError:  # text, in a column that ids are read from too
        raise InvalidInputError(feature.column, f"holds text, but '{feature.name}' is a number") from None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def rows(values: Values, space: Vocabulary | HashBuckets, column: str) -> IdArray:
    """Embedding rows of ids; ``MISSING`` where none is given, and nowhere else.

    Raises:
        InvalidInputError: text that is no integer where the ranker knows integers.
    """
    return space.rows(values, column) if isinstance(values, pa.Array) else space.rows_from_values(values, column)


def hashes(values: Values) -> IdArray:
    """``hash_column`` of ids."""
    return hash_column(values) if isinstance(values, pa.Array) else hash_values(values)


def bag(values: Values, feature: PooledFeature, encoder: Encoder) -> RaggedIds:
    """Lists of ids as embedding rows; what is no list is one missing id, None inside a list is left out."""
    if isinstance(values, pa.Array):
        if isinstance(feature, SequenceFeature) and not pa.types.is_null(values.type):
            values = tail(values, feature.max_length)
        return encoder.encode_bag(values, feature)
    if isinstance(feature, SequenceFeature):
        values = [ids and ids[-feature.max_length :] for ids in values]
    lists = [[None] if ids is None else [value for value in ids if value is not None] for ids in values]
    space = encoder.id_mappings[feature.table]
    assert isinstance(space, Vocabulary | HashBuckets)
    rows_of_lists = space.rows_from_values(list(chain.from_iterable(lists)), feature.column)
    return RaggedIds(rows_of_lists, np.array([len(ids) for ids in lists], np.int64))
