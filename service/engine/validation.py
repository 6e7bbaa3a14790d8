"""A ranking request → columns of values, checked; what is wrong is told in terms of the request."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from reprlib import repr  # noqa: A004 — lists in lists without end would break Python's
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.columns import to_canonical
from ranking.errors import InvalidInputError
from ranking.schema import InputFeature, NumberFeature, Owner, PooledFeature, Schema
from service.engine.errors import InvalidRequestError
from service.engine.request import EMPTY, FeatureRequest, RawFeatures, StoreFeatures
from service.engine.values import Values, to_columns, to_list, to_numpy
from service.protocol.messages import Item, ItemColumns, RankOptions, RankRequest

Readable = Mapping[Owner, Mapping[str, InputFeature]]
"""Owner → column → the feature that says what its values are."""


@dataclass(frozen=True)
class Candidates:
    """What is to be ranked, in whatever form it came.

    Attributes:
        ids: one a candidate; Arrow's are strings without nulls.
        features: column → values; Arrow's of any type.
    """

    ids: Values
    features: Mapping[str, Values]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_items(cls, items: list[Item] | ItemColumns, readable: Mapping[str, InputFeature]) -> Candidates:
        """Those of a JSON request.

        Raises:
            InvalidRequestError: unknown feature: columns of thousands of them would be made only to be refused.
        """
        if isinstance(items, ItemColumns):
            return cls(items.id, items.features)
        features = [item.features for item in items]
        _require_all_known("item", dict.fromkeys(chain.from_iterable(features)), readable)
        return cls([item.id for item in items], to_columns(features))


@dataclass(frozen=True)
class ParsedRequest:
    """A request, in whatever form it came.

    Attributes:
        options: how to rank.
        candidates: what to rank.
    """

    options: RankOptions
    candidates: Candidates

    @classmethod
    def from_message(cls, request: RankRequest, readable: Mapping[str, InputFeature]) -> ParsedRequest:
        """A JSON request; items have ``readable`` columns.

        Raises:
            InvalidRequestError: unknown feature of an item.
        """
        return cls(request, Candidates.from_items(request.items, readable))


def validate(asked: ParsedRequest, readable: Readable, stored: StoreFeatures = EMPTY) -> FeatureRequest:
    """What the request says, checked: known columns, values of their types, distinct candidates.

    Args:
        asked: the request.
        readable: its columns.
        stored: what a store has for it.

    Raises:
        InvalidRequestError: an unknown feature, a value of the wrong type, a candidate named twice.
        InvalidInputError: an Arrow column whose type its feature cannot have.
    """
    request, ids, features = asked.options, asked.candidates.ids, asked.candidates.features
    _require_distinct(ids)
    for column, values in features.items():
        if len(values) != len(ids):
            raise InvalidRequestError(
                f"items.features.{column}", f"has {len(values)} values for {len(ids)} ids: give one for each"
            )
    user = {name: [value] for name, value in request.user.features.items()}
    context = {name: [value] for name, value in request.context.items()}
    of_user, of_items = stored.columns.get("user", {}), stored.columns.get("item", {})
    kinds = _kinds(ids)
    forms = [
        _validate_columns("user", user, readable["user"]),
        _validate_columns("context", context, readable["context"]),
    ]
    features = _canonical(features, readable["item"])
    form = (type(request.user.id), kinds, *forms, _signature(features, readable["item"]), stored.signature)
    owners: dict[Owner, RawFeatures] = {
        "user": RawFeatures([request.user.id], user, of_user),
        "context": RawFeatures(None, context),
        "item": RawFeatures(ids, features, of_items),
    }
    alone = len(kinds) > 1 or any(isinstance(values, pa.Array) for values in (ids, *features.values()))
    return FeatureRequest(owners, [len(ids)], None if alone else form)


def _kinds(ids: Values) -> frozenset[type]:
    if isinstance(ids, list):
        return frozenset(map(type, ids))
    return frozenset([type(ids)])


def _require_distinct(ids: Values) -> None:
    distinct = pc.count_distinct(ids).as_py() if isinstance(ids, pa.Array) else len(set(to_list(ids)))
    if distinct < len(ids):
        values = to_list(ids)
        repeated = next(value for value, times in Counter(values).items() if times > 1)
        first, second = [i for i, value in enumerate(values) if value == repeated][:2]
        raise InvalidRequestError(
            f"items[{second}].id", f"candidate {repeated!r} stands at {first} already: send each candidate once"
        )


def _canonical(columns: Mapping[str, Values], readable: Mapping[str, InputFeature]) -> Mapping[str, Values]:
    """Columns that items have, Arrow's in the types of their features."""
    _require_all_known("item", columns, readable)
    return {
        name: to_numpy(to_canonical(column, readable[name])) if isinstance(column, pa.Array) else column
        for name, column in columns.items()
    }


def _validate_columns(owner: Owner, columns: Mapping[str, Values], readable: Mapping[str, InputFeature]) -> Hashable:
    """The form of columns that are the owner's and whose values are of the right types."""
    _require_all_known(owner, columns, readable)
    return _signature(columns, readable)


def _signature(columns: Mapping[str, Values], readable: Mapping[str, InputFeature]) -> Hashable:
    """Names and types of columns, whose values are of the right types."""
    return tuple((name, _check(values, readable[name])) for name, values in columns.items())


def _require_all_known(owner: Owner, columns: Iterable[str], readable: Mapping[str, InputFeature]) -> None:
    for name in columns:
        require_known(owner, name, readable)


def require_known(owner: Owner, column: str, readable: Mapping[str, InputFeature]) -> None:
    """Whether an owner has a feature in this column.

    Raises:
        InvalidRequestError: it has none; the reason lists its columns.
    """
    if column not in readable:
        reason = f"unknown {owner} feature: this ranker reads {', '.join(readable) or 'none'}"
        raise InvalidRequestError(f"{_field_path(owner)}.{column}", reason)


def _field_path(owner: Owner, row: int | None = None) -> str:
    items = "items.features" if row is None else f"items[{row}].features"
    return {"user": "user.features", "item": items, "context": "context"}[owner]


def _check(values: Values, feature: InputFeature) -> type:
    """The type of values, which is their feature's: whole columns at once, one by one only to name the wrong one."""
    if isinstance(values, pa.Array):  # in the type of the feature
        return type(values)
    if isinstance(values, np.ndarray):
        if not isinstance(feature, NumberFeature) and (feature.kind != "categorical" or values.dtype != np.int64):
            _reject(values.tolist(), feature, _is_list_of_ids if isinstance(feature, PooledFeature) else _is_id)
        return values.dtype.type
    kinds = set(map(type, values))
    if isinstance(feature, NumberFeature):
        if not kinds <= {int, float, NoneType}:
            _reject(values, feature, _is_number)
        return float
    flat = values
    if isinstance(feature, PooledFeature):
        if not kinds <= {list, NoneType}:
            _reject(values, feature, _is_list_of_ids)
        flat = list(chain.from_iterable(ids for ids in values if ids is not None))
        kinds = set(map(type, flat))
    if not are_ids(flat, kinds):
        _reject(values, feature, _is_list_of_ids if isinstance(feature, PooledFeature) else _is_id)
    if {int, str} <= kinds:
        raise InvalidRequestError(
            f"{_field_path(feature.owner)}.{feature.column}", "mixes integers and strings: send one of the two"
        )
    return int if int in kinds else str if str in kinds else NoneType


ALLOWED = {
    "numeric": "a number",
    "buckets": "a number",
    "categorical": "a 64-bit integer or a string",
    "bag": "a list of 64-bit integers or strings",
    "sequence": "a list of 64-bit integers or strings, the newest last",
}
"""What the values of a kind of feature are."""


def are_ids(values: Sequence[Any], kinds: set[type]) -> bool:
    """Whether all values, which are of these types, are ids or None."""
    if kinds == {int}:
        try:
            array("q", values)  # the quickest way to ask whether all have 64 bits
        except OverflowError:
            return False
        return True
    return kinds <= {str, NoneType} or (kinds <= {int, str, NoneType} and all(map(_is_id, values)))


def _is_id(value: Any) -> bool:
    return value is None or type(value) is str or (type(value) is int and -(2**63) <= value < 2**63)


def _is_list_of_ids(value: Any) -> bool:
    return value is None or (type(value) is list and all(map(_is_id, value)))


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _reject(values: Sequence[Any], feature: InputFeature, allowed: Callable[[Any], bool]) -> NoReturn:
    row = next(row for row, value in enumerate(values) if not allowed(value))
    raise InvalidRequestError(
        f"{_field_path(feature.owner, row)}.{feature.column}",
        f"must be {ALLOWED[feature.kind]}, not {repr(values[row]):.80}",
    )


def to_invalid_request(error: InvalidInputError, schema: Schema) -> InvalidRequestError:
    """Convert a ranker's error about a column to an error about the field of the request."""
    places = {f.column: f"{_field_path(f.owner, error.row)}.{f.column}" for f in schema.inputs}
    places |= {schema.columns.user: "user.id", schema.columns.item: "items.id", "tasks": "tasks"}
    return InvalidRequestError(places[error.field], error.reason)
