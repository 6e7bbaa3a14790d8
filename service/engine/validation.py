"""Validates ranking requests column by column; errors name the field of the request."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import to_canonical
from ranking.errors import InvalidInputError
from ranking.schema import InputFeature, NumberFeature, Owner, PooledFeature, Schema
from ranking.schema.value_text import value_text
from service.engine.errors import InvalidRequestError
from service.engine.request import EMPTY, FeatureRequest, RawFeatures, StoreFeatures
from service.engine.values import Values, to_list, to_numpy
from service.protocol.messages import RankOptions

Readable = Mapping[Owner, Mapping[str, InputFeature]]
"""Feature that defines the type of each column, by owner and column."""

ALLOWED_VALUES = {
    "numeric": "a number",
    "buckets": "a number",
    "categorical": "a 64-bit integer or a string",
    "bag": "a list of 64-bit integers or strings",
    "sequence": "a list of 64-bit integers or strings, the newest last",
}
"""Description of the values of each kind of feature, for error messages."""


def validate(
    options: RankOptions, items: RawFeatures, readable: Readable, stored: StoreFeatures = EMPTY
) -> FeatureRequest:
    """Check that columns are known, values have the types of their features, and candidates are distinct.

    Args:
        options: everything but the candidates.
        items: the candidates.
        readable: columns that the ranker reads.
        stored: features from the feature store.

    Raises:
        InvalidRequestError: unknown feature, value of the wrong type, or repeated candidate.
        InvalidInputError: an Arrow column has a type that its feature cannot have.
    """
    ids, columns = items.ids, items.columns
    id_types = frozenset(map(type, ids) if isinstance(ids, list) else [type(ids)])
    _require_distinct(ids if len(id_types) == 1 else list(map(str, ids)))  # 7 and "7" are the same id
    for column, values in columns.items():
        if len(values) != len(ids):
            reason = f"has {len(values)} values for {len(ids)} ids: send one value per id"
            raise InvalidRequestError(f"items.features.{column}", reason)
    user = {name: [value] for name, value in options.user.features.items()}
    context = {name: [value] for name, value in options.context.items()}
    user_signature = _validate_columns("user", user, readable["user"])
    context_signature = _validate_columns("context", context, readable["context"])
    columns = _to_canonical(columns, readable["item"])
    item_signature = _signature(columns, readable["item"])
    signature = (type(options.user.id), id_types, user_signature, context_signature, item_signature, stored.signature)
    owners: dict[Owner, RawFeatures] = {
        "user": RawFeatures([options.user.id], user, stored.columns.get("user", {})),
        "context": RawFeatures([None], context),
        "item": RawFeatures(ids, columns, stored.columns.get("item", {})),
    }
    has_arrow = any(isinstance(values, pa.Array) for values in (ids, *columns.values()))
    return FeatureRequest(owners, [len(ids)], None if has_arrow or len(id_types) > 1 else signature)


def _require_distinct(ids: Values) -> None:
    distinct = pc.count_distinct(ids).as_py() if isinstance(ids, pa.Array) else len(set(to_list(ids)))
    if distinct < len(ids):
        values = to_list(ids)
        repeated = next(value for value, count in Counter(values).items() if count > 1)
        first, second = [i for i, value in enumerate(values) if value == repeated][:2]
        reason = f"candidate {repeated!r} is already at index {first}: send each candidate once"
        raise InvalidRequestError(f"items[{second}].id", reason)


def _to_canonical(columns: Mapping[str, Values], readable: Mapping[str, InputFeature]) -> Mapping[str, Values]:
    """Convert Arrow columns of items to the types of their features."""
    _require_known_columns("item", columns, readable)
    return {
        name: to_numpy(to_canonical(column, readable[name])) if isinstance(column, pa.Array) else column
        for name, column in columns.items()
    }


def _validate_columns(owner: Owner, columns: Mapping[str, Values], readable: Mapping[str, InputFeature]) -> Hashable:
    """Validate the columns of an owner and return their signature."""
    _require_known_columns(owner, columns, readable)
    return _signature(columns, readable)


def _signature(columns: Mapping[str, Values], readable: Mapping[str, InputFeature]) -> Hashable:
    """Validate the types of values and return the names and types of the columns."""
    return tuple((name, _value_type(values, readable[name])) for name, values in columns.items())


def _require_known_columns(owner: Owner, columns: Iterable[str], readable: Mapping[str, InputFeature]) -> None:
    for name in columns:
        require_known(owner, name, readable)


def require_known(owner: Owner, column: str, readable: Mapping[str, InputFeature]) -> None:
    """Check that the ranker reads a column of an owner.

    Raises:
        InvalidRequestError: it does not; the reason lists the columns that it reads.
    """
    if column not in readable:
        reason = f"unknown {owner} feature: this ranker reads {', '.join(readable) or 'none'}"
        raise InvalidRequestError(f"{_field_path(owner)}.{column}", reason)


def _field_path(owner: Owner, row: int | None = None) -> str:
    items = "items.features" if row is None else f"items[{row}].features"
    return {"user": "user.features", "item": items, "context": "context"}[owner]


def _value_type(values: Values, feature: InputFeature) -> type:
    """Validate the values of a column and return their type.

    Whole columns are checked at once; single values only to name the first invalid one.
    """
    if isinstance(values, pa.Array):  # already in the type of the feature
        return type(values)
    if isinstance(values, np.ndarray):
        if not isinstance(feature, NumberFeature) and (feature.kind != "categorical" or values.dtype != np.int64):
            _reject(values.tolist(), feature, _is_list_of_ids if isinstance(feature, PooledFeature) else _is_id)
        return values.dtype.type
    types = set(map(type, values))
    if isinstance(feature, NumberFeature):
        if not types <= {int, float, NoneType}:
            _reject(values, feature, _is_number)
        return float
    ids = values
    if isinstance(feature, PooledFeature):
        if not types <= {list, NoneType}:
            _reject(values, feature, _is_list_of_ids)
        ids = list(chain.from_iterable(row for row in values if row is not None))
        types = set(map(type, ids))
    if not are_ids(ids, types):
        _reject(values, feature, _is_list_of_ids if isinstance(feature, PooledFeature) else _is_id)
    if {int, str} <= types:
        field = f"{_field_path(feature.owner)}.{feature.column}"
        raise InvalidRequestError(field, "mixes integers and strings: send one of the two")
    return int if int in types else str if str in types else NoneType


def are_ids(values: Sequence[Any], types: set[type]) -> bool:
    """Return whether all values are ids or None; ``types`` are the types of the values."""
    if types == {int}:
        try:
            array("q", values)  # the fastest check that all integers have 64 bits
        except OverflowError:
            return False
        return True
    return types <= {str, NoneType} or (types <= {int, str, NoneType} and all(map(_is_id, values)))


def _is_id(value: Any) -> bool:
    return value is None or type(value) is str or (type(value) is int and -(2**63) <= value < 2**63)


def _is_list_of_ids(value: Any) -> bool:
    return value is None or (type(value) is list and all(map(_is_id, value)))


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _reject(values: Sequence[Any], feature: InputFeature, is_allowed: Callable[[Any], bool]) -> NoReturn:
    """Raise an error about the first value that is not allowed."""
    row = next(row for row, value in enumerate(values) if not is_allowed(value))
    field = f"{_field_path(feature.owner, row)}.{feature.column}"
    value = value_text(values[row], "an object")
    raise InvalidRequestError(field, f"must be {ALLOWED_VALUES[feature.kind]}, not {value}")


def to_invalid_request(error: InvalidInputError, schema: Schema) -> InvalidRequestError:
    """Convert a ranker's error about a column to an error about the field of the request."""
    fields = {f.column: f"{_field_path(f.owner, error.row)}.{f.column}" for f in schema.inputs}
    fields |= {schema.columns.user: "user.id", schema.columns.item: "items.id", "tasks": "tasks"}
    return InvalidRequestError(fields[error.field], error.reason)
