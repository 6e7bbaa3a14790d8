"""Additions to the OpenAPI document: bodies in every format, errors, headers and API keys."""

from __future__ import annotations

from http import HTTPStatus
from itertools import chain
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ranking.artifacts.release import Release
from service.http.auth.guard import required_scope
from service.http.media_types import ARROW, JSON
from service.protocol.messages import (
    ColumnarRankResponse,
    Feedback,
    IndexRequest,
    RankOptions,
    RankRequest,
    RankResponse,
    RankSummary,
)
from service.protocol.open_inference import InferRequest
from service.protocol.problems import ErrorDocument, ProblemDocument, is_open_inference_path

REF_TEMPLATE = "#/components/schemas/{model}"

_RANKING = (RankRequest, RankOptions, RankResponse, ColumnarRankResponse, RankSummary)
_MODELS = (*_RANKING, InferRequest, Feedback, IndexRequest, Release)
_, _SCHEMAS = models_json_schema(
    [(model, "validation") for model in (*_MODELS, ProblemDocument, ErrorDocument)], ref_template=REF_TEMPLATE
)

REQUEST_STREAM = (
    "An Arrow IPC stream with one row per candidate: the id in the log's column of item ids, and features in columns "
    "with their names in the log (numbers, integers, strings, or lists of those). The other fields are JSON, as in "
    "RankOptions, under the key `request` of the schema's metadata."
)
RESPONSE_STREAM = (
    "An Arrow IPC stream, best first: `id`, `score` (float64), `scores` (a struct with one float32 per task), "
    "`missing` (lists of names) and, if explained, `contributions` (a struct with a struct of one float32 per feature "
    "for each task; null for items that are not explained). The other fields are JSON, as in RankSummary, under the "
    "key `response` of the schema's metadata. Returned if Accept prefers it."
)


class RawRoute(APIRoute):
    """A route that is described in the OpenAPI document but called by the gateway.

    Its function takes the request and its path parameters as text, and returns the response. FastAPI's conversion of
    arguments costs a small request as much as its scoring. Dependencies are ignored.
    """


def _stream(description: str) -> dict[str, Any]:
    return {"schema": {"type": "string", "contentMediaType": ARROW, "description": description}}


def _ref(model: type) -> dict[str, str]:
    return {"$ref": REF_TEMPLATE.format(model=model.__name__)}


RETRY_HEADER = {"Retry-After": {"description": "seconds, at least 1", "schema": {"type": "integer", "minimum": 1}}}
"""Header of responses after which clients should retry."""


def documented(*statuses: int, error: type[BaseModel] = ProblemDocument) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an operation, by status, for FastAPI's decorators.

    Args:
        statuses: status codes.
        error: body of the responses, ``ProblemDocument`` or ``ErrorDocument``.
    """
    media_type = "application/problem+json" if error is ProblemDocument else JSON
    content = {media_type: {"schema": _ref(error)}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        | ({"headers": RETRY_HEADER} if status in (429, 503) else {})
        for status in statuses
    }


def documented_body(model: type[BaseModel], *, required: bool = False) -> dict[str, Any]:
    """Return the description of a JSON body that the operation decodes itself."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": _ref(model)}}}}


RANKED: dict[str, Any] = {
    "description": "Candidates, best first",
    "content": {
        JSON: {"schema": {"oneOf": [_ref(RankResponse), _ref(ColumnarRankResponse)]}},
        ARROW: _stream(RESPONSE_STREAM),
    },
}

RANKING: dict[str, Any] = {
    "responses": {200: RANKED, **documented(400, 404, 406, 408, 413, 415, 422, 429, 431, 503, 504)},
    "response_model": None,
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": _ref(RankRequest)}, ARROW: _stream(REQUEST_STREAM)},
        }
    },
}
"""Arguments of FastAPI's decorators for the rank operations, which decode and encode their bodies themselves."""

SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an API key"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""Security schemes: the two ways to send an API key."""

REQUEST_ID: dict[str, Any] = {
    "X-Request-ID": {
        "required": True,
        "schema": {"type": "string"},
        "description": "id of the request, generated if it has none",
    }
}
CHALLENGE: dict[str, Any] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
RETRY: dict[str, Any] = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "seconds"}}
HEADERS_BY_STATUS = {"401": CHALLENGE, "403": CHALLENGE, "429": RETRY, "503": RETRY}
"""Further headers of responses, by status."""


def customize_openapi(app: FastAPI, *, requires_keys: bool) -> None:
    """Add the schemas that ``RANKING`` refers to, response headers and, if required, API keys to the document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            document.setdefault("components", {}).setdefault("schemas", {}).update(_SCHEMAS["$defs"])
            if requires_keys:
                _add_keys(document)
            operations = [operation for path in document["paths"].values() for operation in path.values()]
            for status, response in chain.from_iterable(operation["responses"].items() for operation in operations):
                response["headers"] = response.get("headers", {}) | REQUEST_ID | HEADERS_BY_STATUS.get(status, {})
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_keys(document: dict[str, Any]) -> None:
    """Add the required scope and the responses 401 and 403 to each operation that needs a key."""
    document["components"]["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        scope = required_scope(path)
        for operation in operations.values() if scope else ():
            operation["security"] = [{scheme: [scope]} for scheme in SCHEMES]
            error = ErrorDocument if is_open_inference_path(path) else ProblemDocument
            for status in (401, 403):
                operation["responses"][str(status)] = documented(status, error=error)[status]
