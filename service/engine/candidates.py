"""A ranking request → columns of values, checked; what is wrong is told in terms of the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import Any, NoReturn

from ranking.errors import InvalidInputError
from ranking.schema import GivenFeature, NumberFeature, Owner, PooledFeature, Schema
from service.api.messages import ItemColumns, RankRequest
from service.engine.encoding import Given
from service.problems import FieldError, Problem


def given_columns(request: RankRequest, schema: Schema) -> dict[Owner, Given]:
    """What the request gives of each owner, checked: known columns, values of their types, distinct candidates.

    Raises:
        Problem: 422 naming the field: an unknown feature, a value of the wrong type, a candidate named twice.
    """
    ids = item_ids(request)
    _require_distinct(ids)
    user = {name: [value] for name, value in request.user.features.items()}
    context = {name: [value] for name, value in request.context.items()}
    items = _item_features(request)
    for column, values in items.items():
        if len(values) != len(ids):
            raise invalid(f"items.features.{column}", f"has {len(values)} values for {len(ids)} ids: give one for each")
    for owner, columns in (("user", user), ("context", context), ("item", items)):
        for column, feature in _known(schema, owner, columns).items():  # type: ignore[arg-type]
            _check(columns[column], feature)
    return {"user": Given([request.user.id], user), "context": Given(None, context), "item": Given(ids, items)}


def item_ids(request: RankRequest) -> list[int | str]:
    """Candidates' ids in the order of the request."""
    return request.items.id if isinstance(request.items, ItemColumns) else [item.id for item in request.items]


def _item_features(request: RankRequest) -> Mapping[str, Sequence[Any]]:
    if isinstance(request.items, ItemColumns):
        return request.items.features
    names = dict.fromkeys(name for item in request.items for name in item.features)
    return {name: [item.features.get(name) for item in request.items] for name in names}


def _require_distinct(ids: Sequence[int | str]) -> None:
    if len(set(ids)) < len(ids):
        repeated = next(value for value, times in Counter(ids).items() if times > 1)
        first, second = [i for i, value in enumerate(ids) if value == repeated][:2]
        raise invalid(
            f"items[{second}].id", f"candidate {repeated!r} stands at {first} already: send each candidate once"
        )


def _known(schema: Schema, owner: Owner, names: Iterable[str]) -> dict[str, GivenFeature]:
    """The owner's features by column, for the columns that the request names."""
    features = {f.column: f for f in schema.given if f.owner == owner and f.column != schema.id_column(owner)}
    for name in names:
        if name not in features:
            raise invalid(
                f"{_place(owner)}.{name}", f"unknown {owner} feature: this ranker reads {', '.join(features) or 'none'}"
            )
    return {name: features[name] for name in names}


def _place(owner: Owner, row: int | None = None) -> str:
    items = "items.features" if row is None else f"items[{row}].features"
    return {"user": "user.features", "item": items, "context": "context"}[owner]


def _check(values: Sequence[Any], feature: GivenFeature) -> None:
    """Values of a column are of its feature's type: whole columns at once, one by one only to name the wrong one."""
    if isinstance(feature, NumberFeature):
        if not set(map(type, values)) <= {int, float, NoneType}:
            _refuse(values, feature, _is_number)
        return
    if isinstance(feature, PooledFeature):
        if not set(map(type, values)) <= {list, NoneType}:
            _refuse(values, feature, _is_list_of_ids)
        flat = list(chain.from_iterable(ids for ids in values if ids is not None))
        if not _are_ids(flat):
            _refuse(values, feature, _is_list_of_ids)
    else:
        flat = list(values)
        if not _are_ids(flat):
            _refuse(values, feature, _is_id)
    if {int, str} <= set(map(type, flat)):
        raise invalid(f"{_place(feature.owner)}.{feature.column}", "mixes integers and strings: send one of the two")


ALLOWED = {
    "numeric": "a number",
    "buckets": "a number",
    "categorical": "a 64-bit integer or a string",
    "bag": "a list of 64-bit integers or strings",
    "sequence": "a list of 64-bit integers or strings, the newest last",
}
"""What the values of a kind of feature are."""


def _are_ids(values: Sequence[Any]) -> bool:
    kinds = set(map(type, values)) - {NoneType}
    return kinds <= {str} or (kinds <= {int, str} and all(map(_is_id, values)))


def _is_id(value: Any) -> bool:
    return value is None or type(value) is str or (type(value) is int and -(2**63) <= value < 2**63)


def _is_list_of_ids(value: Any) -> bool:
    return value is None or (type(value) is list and all(map(_is_id, value)))


def _is_number(value: Any) -> bool:
    return value is None or type(value) in (int, float)


def _refuse(values: Sequence[Any], feature: GivenFeature, allowed: Callable[[Any], bool]) -> NoReturn:
    row = next(row for row, value in enumerate(values) if not allowed(value))
    raise invalid(
        f"{_place(feature.owner, row)}.{feature.column}", f"must be {ALLOWED[feature.kind]}, not {values[row]!r:.80}"
    )


def invalid(field: str, reason: str) -> Problem:
    """422 for one field."""
    return Problem(422, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def explained(error: InvalidInputError, schema: Schema) -> Problem:
    """A ranker's complaint about a column, in terms of the request."""
    places = {f.column: f"{_place(f.owner, error.row)}.{f.column}" for f in schema.given}
    places |= {schema.columns.user: "user.id", schema.columns.item: "items.id", "tasks": "tasks"}
    return invalid(places[error.field], error.reason)
