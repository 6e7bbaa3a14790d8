"""What the OpenAPI document says of ranking: every body in every format, and every error."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ranking.artifacts.release import Release
from service.http.auth.scopes import required_scope
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
from service.protocol.problems import ProblemDocument

REF = "#/components/schemas/{model}"

_, _MODELS = models_json_schema(
    [
        (model, "validation")
        for model in (
            *(RankRequest, RankOptions, RankResponse, ColumnarRankResponse, RankSummary),
            *(Feedback, IndexRequest, Release, ProblemDocument),
        )
    ],
    ref_template=REF,
)

STREAM_IN = (
    "An Arrow IPC stream of candidates: their ids in the log's column of item ids, features in columns by their names "
    "there: numbers, integers, strings, or lists of those. The rest of the request is JSON, as RankOptions describes "
    "it, under the key `request` of the schema's metadata."
)
STREAM_OUT = (
    "An Arrow IPC stream, best first: `id`, `score` (float64), `scores` (a struct of float32, one a task), `missing` "
    "(lists of names). The rest of the answer is JSON, as RankSummary describes it, under the key `response` of the "
    "schema's metadata. Sent if Accept prefers it."
)


def _stream(description: str) -> dict[str, Any]:
    return {"schema": {"type": "string", "contentMediaType": ARROW, "description": description}}


def _ref(model: type) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}


AGAIN = {"Retry-After": {"description": "seconds, at least 1", "schema": {"type": "integer", "minimum": 1}}}
"""Header of the answers that are worth another try."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors by status, for FastAPI's decorators."""
    content = {"application/problem+json": {"schema": _ref(ProblemDocument)}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        | ({"headers": AGAIN} if status in (429, 503) else {})
        for status in statuses
    }


def documented_body(model: type[BaseModel], *, required: bool = False) -> dict[str, Any]:
    """A JSON body that the operation reads itself."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": _ref(model)}}}}


RANKED: dict[str, Any] = {
    "description": "Candidates, best first",
    "content": {
        JSON: {"schema": {"oneOf": [_ref(RankResponse), _ref(ColumnarRankResponse)]}},
        ARROW: _stream(STREAM_OUT),
    },
}

RANKING: dict[str, Any] = {
    "responses": {200: RANKED, **documented(400, 404, 406, 408, 413, 415, 422, 429, 431, 503, 504)},
    "response_model": None,
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": _ref(RankRequest)}, ARROW: _stream(STREAM_IN)},
        }
    },
}
"""Of the operations that rank, for FastAPI's decorators: they read and write their bodies themselves."""


SCHEMES: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an API key"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""Ways to send an API key."""

REQUEST_ID: dict[str, Any] = {
    "X-Request-ID": {"required": True, "schema": {"type": "string"}, "description": "the request's, or one made for it"}
}
CHALLENGE: dict[str, Any] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
RETRY: dict[str, Any] = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "seconds"}}
HEADERS = {"401": CHALLENGE, "403": CHALLENGE, "429": RETRY, "503": RETRY}
"""Of answers, by status."""


def describe(app: FastAPI, *, guarded: bool) -> None:
    """Makes the document of an app name the schemas that ``RANKING`` refers to, and the keys, if it wants any."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            made.setdefault("components", {}).setdefault("schemas", {}).update(_MODELS["$defs"])
            if guarded:
                _add_keys(made)
            for operation in _operations(made):
                for status, answer in operation["responses"].items():
                    answer["headers"] = answer.get("headers", {}) | REQUEST_ID | HEADERS.get(status, {})
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_keys(document: dict[str, Any]) -> None:
    """Says of each operation which scope it needs and how it refuses."""
    document["components"]["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        scope = required_scope(path)
        for operation in operations.values() if scope else ():
            operation["security"] = [{scheme: [scope]} for scheme in SCHEMES]
            for status in (401, 403):
                operation["responses"][str(status)] = documented(status)[status]


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for operations in document["paths"].values():
        yield from operations.values()
