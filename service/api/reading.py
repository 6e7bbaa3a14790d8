"""The bytes of a request → what is asked, whichever of the accepted formats they are in."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from service.api.arrow import read_stream
from service.api.formats import ARROW
from service.api.messages import RankOptions, RankRequest
from service.engine.candidates import Asked
from service.problems import invalid_request, malformed, too_many
from service.settings import Settings
from service.versions.served import Served

Message = TypeVar("Message", bound=BaseModel)


def read(body: bytes, form: str, served: Served, settings: Settings) -> Asked:
    """What is asked.

    Args:
        body: of the request.
        form: one of ``formats.FORMATS``.
        served: what is to answer; the names of its columns are those of an Arrow stream.
        settings: how large a request may be.

    Raises:
        Problem: 400 for what cannot be read, 413 for too many candidates, 422 naming the fields that are wrong.
    """
    if form == ARROW:
        columns, readable = served.ranker.schema.columns, served.encoder.readable["item"]
        options, candidates = read_stream(
            body, columns.item, readable, settings.max_candidates, settings.max_body_bytes
        )
        return Asked(message(options, RankOptions, "request"), candidates)
    asked = Asked.of(message(body, RankRequest, "body"))
    if len(asked.candidates) > settings.max_candidates:
        raise too_many(len(asked.candidates), settings.max_candidates)
    return asked


def message(body: bytes, model: type[Message], field: str) -> Message:
    """JSON as one of the API's messages; ``field`` names all of it in an error.

    Raises:
        Problem: 400 for what is no JSON, with the position; 422 for what is no such message, naming the fields.
    """
    try:
        document = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        document = _lenient(body, field)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid_request(error) from None


def _lenient(body: bytes, field: str) -> Any:
    """JSON as Python reads it: it says where it is broken, and takes NaN, so that who checks it can name the field."""
    try:
        document = json.loads(body)
        json.dumps(document, ensure_ascii=False).encode()  # refuses half of a surrogate pair, which no text can hold
        return document
    except json.JSONDecodeError as error:
        raise malformed(field, f"not valid JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):  # no text, a number of thousands of digits, lists in lists without end
        raise malformed(field, "not valid JSON") from None
