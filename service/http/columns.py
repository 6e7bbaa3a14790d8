"""Candidates in columns, read from JSON into arrays without a Python object a number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np
import orjson
import simdjson

from ranking.schema import InputFeature, NumberFeature, PooledFeature
from service.engine.validation import Candidates
from service.engine.values import Values
from service.http.strings import may_hold_longer
from service.protocol.messages import ItemColumns, RankRequest
from service.protocol.problems import too_many

Kind = Literal["i", "d"]
"""Of numbers, as simdjson calls it: integers of 64 bits, or floats, for which it takes integers too."""

ESCAPED_BRACKET = b"\\u005"


class UnexpectedError(ValueError):
    """The request is none in columns, or something is wrong with it."""


def read_columns(
    body: bytes, readable: Mapping[str, InputFeature], max_candidates: int, max_text: int
) -> tuple[dict[str, Any], Candidates] | None:
    """A request without its items, of which nothing is checked, and its candidates.

    Args:
        body: JSON.
        readable: columns that an item may have.
        max_candidates: at most so many.
        max_text: characters of any text.

    Returns:
        None if candidates stand in rows, or if anything is not as it should be: for whoever reads with more care, and
        says what is wrong.

    Raises:
        Problem: 413 more candidates than allowed.
    """
    try:
        request = _members(simdjson.Parser().parse(body), RankRequest.model_fields)
        items = _members(request.pop("items", None), ItemColumns.model_fields)
        ids = _ids(items.get("id"), max_candidates)
        features = _members(items["features"], readable) if "features" in items else {}
        columns = {name: _column(values, readable[name]) for name, values in features.items()}
        rest = {name: _plain(value) for name, value in request.items()}
        _require_plain(body, [rest, ids, columns], max_text)
    except (ValueError, LookupError, RuntimeError, orjson.JSONEncodeError):  # so simdjson says what is beyond it, too
        return None
    return rest, Candidates(ids, columns)


def _members(value: Any, names: Collection[str]) -> dict[str, Any]:
    """An object's members, each named once and as it may be."""
    if not isinstance(value, simdjson.Object) or len(value) > len(names):
        raise UnexpectedError
    found = list(value)
    if len(set(found)) < len(found) or not set(found) <= set(names):
        raise UnexpectedError
    return {name: value[name] for name in found}


def _ids(values: Any, most: int) -> Values:
    if not isinstance(values, simdjson.Array):
        raise UnexpectedError
    if len(values) > most:
        raise too_many(len(values), most)
    ids = _numbers(values, "i")
    if isinstance(ids, list) and set(map(type, ids)) != {str}:
        raise UnexpectedError
    return ids


def _column(values: Any, feature: InputFeature) -> Values:
    if not isinstance(values, simdjson.Array):
        raise UnexpectedError
    if isinstance(feature, PooledFeature):
        return values.as_list()
    return _numbers(values, "d" if isinstance(feature, NumberFeature) else "i")


def _numbers(values: simdjson.Array, kind: Kind) -> Values:
    """As an array if all are numbers of that kind."""
    try:
        return np.frombuffer(values.as_buffer(of_type=kind), np.int64 if kind == "i" else np.float64)
    except (TypeError, ValueError):  # nulls, text
        return values.as_list()


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _require_plain(body: bytes, read: list[Any], max_text: int) -> None:
    """No text is too long, and no list stood in one of numbers, where its own would be taken for those of the other.

    What was read must begin as many lists as the body does, which tells them all if no bracket is written as a number.
    """
    skeleton = orjson.dumps(read, default=_empty)
    escaped = b"\\" in body and ESCAPED_BRACKET in body
    if escaped or body.count(b"[") != skeleton.count(b"[") - 1 or may_hold_longer(skeleton, max_text):
        raise UnexpectedError


def _empty(array: object) -> list[object]:
    """In place of an array, the beginning of whose list alone counts."""
    assert isinstance(array, np.ndarray)
    return []
