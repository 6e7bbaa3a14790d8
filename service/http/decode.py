"""The bytes of a request → what is asked, whichever of the accepted formats they are in."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from service.engine.errors import InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.validation import ParsedRequest
from service.http.arrow import read_stream
from service.http.columns import read_columns
from service.http.media_types import ARROW
from service.http.rows import split_rows
from service.http.strings import longer, may_hold_longer
from service.protocol.messages import RankOptions, RankRequest
from service.protocol.problems import invalid_request, malformed, too_many
from service.settings import Settings

LARGE = 2048
"""Bytes of JSON from which on columns are sooner read into arrays than into objects."""

ITEMS, COLUMNS = b'"items"', re.compile(rb"\s*:\s*\{")
"""Where a request's items are named, and how they go on if they stand in columns."""

Message = TypeVar("Message", bound=BaseModel)


def read(body: bytes, form: str, served: LoadedModel, settings: Settings) -> ParsedRequest:
    """What is asked.

    Args:
        body: of the request.
        form: one of ``formats.FORMATS``.
        served: what is to answer; the names of its columns are those of an Arrow stream.
        settings: how large a request may be.

    Raises:
        Problem: 400 for what cannot be read, 413 for too many candidates, 422 naming the fields that are wrong.
    """
    readable, most_text = served.encoder.readable["item"], settings.max_string_length
    if form == ARROW:
        key = served.ranker.schema.columns.item
        options, candidates = read_stream(
            body, key, readable, settings.max_candidates, settings.max_body_bytes, most_text
        )
        return ParsedRequest(message(options, RankOptions, "request", settings), candidates)
    found = read_columns(body, readable, settings.max_candidates, most_text) if _in_large_columns(body) else None
    if found is None:
        document = _document(body, "body", settings)
        found = split_rows(document, readable)
        if found is None:
            return ParsedRequest.from_message(_valid(document, RankRequest), readable)
    rest, candidates = found
    return ParsedRequest(_valid(rest, RankOptions), candidates)


def message(body: bytes, model: type[Message], field: str, settings: Settings) -> Message:
    """JSON as one of the API's messages; ``field`` names all of it in an error.

    Raises:
        Problem: 400 for what is no JSON, with the position; 413 for too many candidates; 422 for what is no such
            message, naming the fields.
    """
    return _valid(_document(body, field, settings), model)


def _in_large_columns(body: bytes) -> bool:
    """Whether it looks like that; a wrong guess costs time alone."""
    return len(body) >= LARGE and COLUMNS.match(body, body.find(ITEMS) + len(ITEMS)) is not None


def _document(body: bytes, field: str, settings: Settings) -> Any:
    try:
        document = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        document = _lenient(body, field)
    _require_few(document, settings.max_candidates)
    if may_hold_longer(body, settings.max_string_length):
        _require_short(document, settings.max_string_length)
    return document


def _valid(document: Any, model: type[Message]) -> Message:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid_request(error) from None


def _require_few(document: Any, most: int) -> None:
    """Not more candidates than allowed: before each of them costs what checking it costs."""
    items = document.get("items") if isinstance(document, dict) else None
    ids = items.get("id") if isinstance(items, dict) else items
    if isinstance(ids, list) and len(ids) > most:
        raise too_many(len(ids), most)


def _require_short(document: Any, most: int) -> None:
    if (field := longer(document, most)) is not None:
        raise InvalidRequestError(field or "body", f"has more than {most} characters: send a shorter one")


def _lenient(body: bytes, field: str) -> Any:
    """JSON as Python reads it: it says where it is broken, and takes NaN, so that who checks it can name the field."""
    try:
        document = json.loads(body)
        json.dumps(document, ensure_ascii=False).encode()  # refuses half of a surrogate pair, which no text can hold
        return document
    except json.JSONDecodeError as error:
        raise malformed(field, f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise malformed(field, "not valid JSON: too many lists or objects in each other") from None
    except ValueError:  # no text, a number of thousands of digits
        raise malformed(field, "not valid JSON") from None
