"""Decodes the body of a request in any of the accepted formats: JSON with rows or columns, and Arrow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from ranking.schema import InputFeature
from service.engine.errors import InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.request import RawFeatures
from service.engine.validation import are_ids, require_known
from service.engine.values import to_columns
from service.http.arrow import read_stream
from service.http.columns import may_contain_long_text, read_columns
from service.http.media_types import ARROW
from service.protocol.messages import ItemColumns, RankOptions, RankRequest
from service.protocol.problems import invalid_request, malformed, too_many_candidates
from service.settings import Settings

MIN_COLUMNS_BYTES = 2048
"""Size of a JSON body from which on ``read_columns`` is faster than the general reader."""

MAX_STRING_LENGTH = 1_024
"""Maximum number of characters of any text in a request: ids, features and names."""

LARGE_BYTES = 256 * 1024
"""Size of a body from which its elements are counted; the parsed form of a smaller one takes a few megabytes."""
ELEMENT_BYTES = 8
"""Bytes of a body to which the parsed form of one element, list or object of JSON corresponds: about 100 bytes."""

ITEMS, OBJECT_VALUE = b'"items"', re.compile(rb"\s*:\s*\{")
"""The key of a request's items, and what follows it if they are in columns."""

Message = TypeVar("Message", bound=BaseModel)

_Location = tuple[Any, str | int, Any]
"""A value, its key or position, and the location of its container."""


def json_size(body: bytes) -> int:
    """Return the size of a JSON body, or that of one with as many elements, lists and objects, if that is larger."""
    if len(body) < LARGE_BYTES:
        return len(body)
    return max(len(body), ELEMENT_BYTES * sum(map(body.count, (b",", b"[", b"{"))))


def decode_request(
    body: bytes, body_format: str, model: LoadedModel, settings: Settings
) -> tuple[RankOptions, RawFeatures]:
    """Decode a rank request; return everything but its candidates, and the candidates, not validated yet.

    Args:
        body: body of the request.
        body_format: one of ``media_types.FORMATS``.
        model: model that will score the request; the columns of an Arrow stream have the names of its log columns.
        settings: limits of a request.

    Raises:
        Problem: 400 if the body cannot be parsed, 413 if there are too many candidates, 422 if fields are not valid.
        InvalidRequestError: a field is not valid.
    """
    item_features, max_length = model.encoder.readable["item"], MAX_STRING_LENGTH
    if body_format == ARROW:
        id_column = model.ranker.schema.columns.item
        limits = settings.max_candidates, settings.max_body_bytes, max_length
        options, items = read_stream(body, id_column, item_features, *limits)
        return decode_message(options, RankOptions, "request", settings), items
    parsed = None
    if _looks_like_large_columns(body):
        parsed = read_columns(body, item_features, settings.max_candidates, max_length)
    if parsed is None:
        document = parse_json(body, "body", settings)
        parsed = split_rows(document, item_features)
        if parsed is None:
            message = validate_message(document, RankRequest)
            return message, item_columns(message, item_features)
    rest, items = parsed
    return validate_message(rest, RankOptions, received=RankRequest), items


def item_columns(request: RankRequest, item_features: Mapping[str, InputFeature]) -> RawFeatures:
    """Return the candidates of a JSON request.

    Args:
        request: the request.
        item_features: features of items, by column.

    Raises:
        InvalidRequestError: unknown feature of an item; rejected here because thousands of distinct names would become
            as many columns.
    """
    items = request.items
    if isinstance(items, ItemColumns):
        return RawFeatures(items.id, items.features)
    features = [item.features for item in items]
    for name in dict.fromkeys(chain.from_iterable(features)):
        require_known("item", name, item_features)
    return RawFeatures([item.id for item in items], to_columns(features))


def decode_message(body: bytes, message: type[Message], field: str, settings: Settings) -> Message:
    """Decode JSON as one of the API's messages.

    Args:
        body: JSON.
        message: class of the message.
        field: name of the whole message in errors.
        settings: limits of a request.

    Raises:
        Problem: 400 with the position if the body is not JSON, 413 if there are too many candidates, 422 if fields
            are not valid.
        InvalidRequestError: text is too long.
    """
    return validate_message(parse_json(body, field, settings), message, field)


def split_rows(document: Any, item_features: Mapping[str, InputFeature]) -> tuple[dict[str, Any], RawFeatures] | None:
    """Convert candidates in rows to columns without a message object per item.

    Such objects would cost several times as much as parsing the JSON, and more than the scoring.

    Args:
        document: parsed request.
        item_features: features of items, by column.

    Returns:
        The request without its items, not validated, and its candidates; None if the candidates are in columns or not
        valid, so that ``RankRequest`` must report what is wrong.
    """
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not set(map(type, items)) <= {dict}:
        return None
    try:
        ids = [item["id"] for item in items]
    except KeyError:
        return None
    features = [item["features"] for item in items if "features" in item]
    if sum(map(len, items)) != len(ids) + len(features) or not set(map(type, features)) <= {dict}:
        return None
    types = set(map(type, ids))
    if not types <= {int, str} or not are_ids(ids, types):
        return None
    if len(features) < len(items):
        features = [item.get("features", {}) for item in items]
    if not item_features.keys() >= set(chain.from_iterable(features)):
        return None
    rest = {name: value for name, value in document.items() if name != "items"}
    return rest, RawFeatures(ids, to_columns(features))


def find_long_text(document: Any, max_length: int) -> str | None:
    """Return the path of a text of more than ``max_length`` characters, or None.

    Args:
        document: parsed JSON; the names of its fields count as text.
        max_length: number of characters.
    """
    pending: list[_Location] = [(document, "", None)]
    while pending:
        location = pending.pop()
        value = location[0]
        if isinstance(value, str) and len(value) > max_length:
            return _path(location)
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, member in members:
            if isinstance(member, list | dict) or (isinstance(member, str) and len(member) > max_length):
                pending.append((member, key, location))
            if isinstance(key, str) and len(key) > max_length:
                return _path((member, key, location))
    return None


def _looks_like_large_columns(body: bytes) -> bool:
    """Guess whether ``read_columns`` is faster; a wrong guess costs only time."""
    return len(body) >= MIN_COLUMNS_BYTES and OBJECT_VALUE.match(body, body.find(ITEMS) + len(ITEMS)) is not None


def parse_json(body: bytes, field: str, settings: Settings) -> Any:
    """Parse JSON.

    Args:
        body: JSON.
        field: name of the whole message in errors.
        settings: limits of a request.

    Raises:
        Problem: 400 with the position if the body is not JSON, 413 if there are too many candidates.
        InvalidRequestError: text is too long.
    """
    try:
        document = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        document = _parse_with_position(body, field)
    _check_candidate_count(document, settings.max_candidates)
    if may_contain_long_text(body, MAX_STRING_LENGTH):
        _check_text_length(document, MAX_STRING_LENGTH)
    return document


def _parse_with_position(body: bytes, field: str) -> Any:
    """Parse with Python's reader, which reports positions, and accepts NaN so that validation can name its field."""
    try:
        document = json.loads(body.decode())
        json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeDecodeError as error:
        raise malformed(field, f"not valid UTF-8 at byte {error.start}: encode the JSON as UTF-8") from None
    except UnicodeEncodeError:
        raise malformed(field, "not valid JSON: text with half of a surrogate pair, such as \\ud800") from None
    except json.JSONDecodeError as error:
        raise malformed(field, f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise malformed(field, "not valid JSON: too many nested lists or objects") from None
    except ValueError:  # an integer of thousands of digits
        raise malformed(field, "not valid JSON") from None


def validate_message(
    document: Any, message: type[Message], field: str = "body", *, received: type[BaseModel] | None = None
) -> Message:
    """Validate parsed JSON as one of the API's messages.

    Args:
        document: parsed JSON.
        message: class of the message.
        field: name of the whole message in errors.
        received: class of the message that the client sent, if the document is a part of it.

    Raises:
        Problem: 422 if fields are not valid.
    """
    try:
        return message.model_validate(document)
    except ValidationError as error:
        raise invalid_request(error, received or message, field) from None


def _check_candidate_count(document: Any, max_candidates: int) -> None:
    """Reject too many candidates before validation, whose cost grows with their number."""
    items = document.get("items") if isinstance(document, dict) else None
    ids = items.get("id") if isinstance(items, dict) else items
    if isinstance(ids, list) and len(ids) > max_candidates:
        raise too_many_candidates(len(ids), max_candidates)


def _check_text_length(document: Any, max_length: int) -> None:
    if (field := find_long_text(document, max_length)) is not None:
        raise InvalidRequestError(field or "body", f"has more than {max_length} characters: send a shorter one")


def _path(location: _Location) -> str:
    """Return a path such as ``items[3].id``; names that are too long are truncated."""
    _, key, parent = location
    if parent is None:
        return ""
    prefix = _path(parent)
    if isinstance(key, int):
        return f"{prefix}[{key}]"
    return f"{prefix}.{key:.40}" if prefix else f"{key:.40}"
