"""Reads JSON candidates in columns into arrays, without a Python object per number.

The reader accepts only what it is certain to read as the general reader does; it leaves all other requests to that one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np
import orjson
import simdjson

from ranking.schema import InputFeature, NumberFeature, PooledFeature
from service.engine.request import RawFeatures
from service.engine.values import Values
from service.protocol.messages import ItemColumns, RankRequest
from service.protocol.problems import too_many_candidates

NumberType = Literal["i", "d"]
"""simdjson's codes of 64-bit integers and of floats, which include integers."""

ESCAPED_BRACKET = b"\\u005"
ESCAPED_QUOTE = b'\\"'


class UnsupportedRequestError(ValueError):
    """The request must be read by the general reader, which reports what is wrong with it."""


def read_columns(
    body: bytes, item_features: Mapping[str, InputFeature], max_candidates: int, max_length: int
) -> tuple[dict[str, Any], RawFeatures] | None:
    """Read a request with its candidates in columns.

    Args:
        body: JSON.
        item_features: features of items, by column.
        max_candidates: maximum number of candidates.
        max_length: maximum number of characters of any text.

    Returns:
        The request without its items, not validated, and its candidates; None if the general reader must read it.

    Raises:
        Problem: 413 if there are too many candidates.
    """
    try:
        request = _members(simdjson.Parser().parse(body), RankRequest.model_fields)
        items = _members(request.pop("items", None), ItemColumns.model_fields)
        ids = _read_ids(items.get("id"), max_candidates)
        features = _members(items["features"], item_features) if "features" in items else {}
        columns = {name: _read_column(values, item_features[name]) for name, values in features.items()}
        options = {name: _to_python(value) for name, value in request.items()}
        _check_text_and_lists(body, [options, ids, columns], max_length)
    except (ValueError, LookupError, RuntimeError, orjson.JSONEncodeError):  # simdjson raises all of these
        return None
    return options, RawFeatures(ids, columns)


def may_contain_long_text(body: bytes, max_length: int) -> bool:
    """Whether JSON may contain text of more than ``max_length`` characters; False is certain.

    The function takes microseconds: it moves from a quote to the last quote within ``max_length`` bytes, and skips what
    lies between. Longer text is only possible where there is no such quote and the number of quotes before is odd.

    Args:
        body: JSON in UTF-8.
        max_length: number of characters.
    """
    if b"\\" in body and ESCAPED_QUOTE in body:  # searching for one byte is much faster than for two
        return True  # quotes may be part of text
    position = counted = quotes = 0
    while len(body) - position > max_length:
        last = body.rfind(b'"', position, position + max_length + 1)
        if last >= 0:
            position = last + 1
            continue
        quotes += body.count(b'"', counted, position)
        if quotes % 2:
            return True
        counted = position
        position = body.find(b'"', position + max_length) + 1
        if not position:
            return False
    return False


def _members(value: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the members of an object whose names are distinct and among ``names``."""
    if not isinstance(value, simdjson.Object) or len(value) > len(names):
        raise UnsupportedRequestError
    keys = list(value)
    if len(set(keys)) < len(keys) or not set(keys) <= set(names):
        raise UnsupportedRequestError
    return {key: value[key] for key in keys}


def _read_ids(values: Any, max_candidates: int) -> Values:
    if not isinstance(values, simdjson.Array):
        raise UnsupportedRequestError
    if len(values) > max_candidates:
        raise too_many_candidates(len(values), max_candidates)
    ids = _read_numbers(values, "i")
    if isinstance(ids, list) and set(map(type, ids)) != {str}:
        raise UnsupportedRequestError
    return ids


def _read_column(values: Any, feature: InputFeature) -> Values:
    if not isinstance(values, simdjson.Array):
        raise UnsupportedRequestError
    if isinstance(feature, PooledFeature):
        return values.as_list()
    return _read_numbers(values, "d" if isinstance(feature, NumberFeature) else "i")


def _read_numbers(values: simdjson.Array, number_type: NumberType) -> Values:
    """Return an array if all values are numbers of the type, else a list."""
    try:
        return np.frombuffer(values.as_buffer(of_type=number_type), np.int64 if number_type == "i" else np.float64)
    except (TypeError, ValueError):  # nulls or text
        return values.as_list()


def _to_python(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _check_text_and_lists(body: bytes, parsed: list[Any], max_length: int) -> None:
    """Check that no text is too long and that no list of numbers contained a list.

    simdjson flattens a list within a list of numbers. Therefore the number of lists in the parsed values must equal
    the number of opening brackets in the body, which is conclusive unless a bracket is escaped.
    """
    skeleton = orjson.dumps(parsed, default=_to_empty_list)
    escaped = b"\\" in body and ESCAPED_BRACKET in body
    if escaped or body.count(b"[") != skeleton.count(b"[") - 1 or may_contain_long_text(skeleton, max_length):
        raise UnsupportedRequestError


def _to_empty_list(array: object) -> list[object]:
    """Represent an array in the skeleton, where only its opening bracket counts."""
    assert isinstance(array, np.ndarray)
    return []
