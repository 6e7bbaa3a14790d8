"""A ranking request → the table of candidates that the ranker scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ranking.errors import InvalidInputError
from ranking.features import id_array
from ranking.schema import GivenFeature, NumberFeature, Owner, Schema
from service.api.messages import ItemColumns, RankRequest
from service.problems import FieldError, Problem


def to_table(request: RankRequest, schema: Schema) -> pa.Table:
    """One row a candidate: ids and the features that the request gives, each a column named as in the log.

    Raises:
        Problem: 422 naming the field: an unknown feature, a value of the wrong type, a candidate named twice.
    """
    ids = item_ids(request)
    _require_distinct(ids)
    count = len(ids)
    columns: dict[str, pa.Array] = {schema.columns.item: id_array(ids)}
    columns[schema.columns.user] = _repeat(id_array([request.user.id]), count)
    shared: tuple[tuple[Owner, Mapping[str, Any]], ...] = (
        ("user", request.user.features),
        ("context", request.context),
    )
    for owner, features in shared:
        for column, feature in _known(schema, owner, features).items():
            columns[column] = _repeat(_array([features[column]], feature, owner), count)
    items = _item_features(request)
    for column, feature in _known(schema, "item", items).items():
        values = items[column]
        if len(values) != count:
            raise invalid(f"items.features.{column}", f"has {len(values)} values for {count} ids: give one for each")
        columns[column] = _array(values, feature, "item")
    return pa.table(columns)


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


def _array(values: Sequence[Any], feature: GivenFeature, owner: Owner) -> pa.Array:
    allowed, what = _allowed(feature)
    for row, value in enumerate(values):
        if value is not None and not allowed(value):
            where = _place(owner, row)
            raise invalid(f"{where}.{feature.column}", f"must be {what}, not {value!r:.80}")
    try:
        return pa.array(values, pa.float64() if isinstance(feature, NumberFeature) else None)
    except (pa.ArrowException, UnicodeEncodeError):
        raise invalid(f"{_place(owner)}.{feature.column}", "mixes integers and strings: send one of the two") from None


def _allowed(feature: GivenFeature) -> tuple[Any, str]:
    def number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    def identifier(value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63)

    def ids(value: Any) -> bool:
        return isinstance(value, list) and all(v is None or identifier(v) for v in value)

    return {
        "numeric": (number, "a number"),
        "buckets": (number, "a number"),
        "categorical": (identifier, "a 64-bit integer or a string"),
        "bag": (ids, "a list of 64-bit integers or strings"),
        "sequence": (ids, "a list of 64-bit integers or strings, the newest last"),
    }[feature.kind]


def _repeat(one: pa.Array, count: int) -> pa.Array:
    return one.take(pa.array(np.zeros(count, np.int64)))


def invalid(field: str, reason: str) -> Problem:
    """422 for one field."""
    return Problem(422, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def explained(error: InvalidInputError, schema: Schema) -> Problem:
    """A ranker's complaint about a column, in terms of the request."""
    places = {f.column: f"{_place(f.owner, error.row)}.{f.column}" for f in schema.given}
    places |= {schema.columns.user: "user.id", schema.columns.item: "items.id", "tasks": "tasks"}
    return invalid(places[error.field], error.reason)
