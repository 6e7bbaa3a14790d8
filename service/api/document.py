"""What the OpenAPI document says of ranking: every body in every format, and every error."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.api.formats import ARROW, JSON
from service.api.messages import ColumnarRankResponse, RankOptions, RankRequest, RankResponse, RankSummary
from service.problems import ProblemDocument

REF = "#/components/schemas/{model}"

_, _MODELS = models_json_schema(
    [
        (model, "validation")
        for model in (RankRequest, RankOptions, RankResponse, ColumnarRankResponse, RankSummary, ProblemDocument)
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

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": _ref(ProblemDocument)}},
    }
    | ({"headers": AGAIN} if status in (429, 503) else {})
    for status in (400, 404, 406, 408, 413, 415, 422, 429, 431, 503, 504)
}
"""Errors by status."""

RANKED: dict[str, Any] = {
    "description": "Candidates, best first",
    "content": {
        JSON: {"schema": {"oneOf": [_ref(RankResponse), _ref(ColumnarRankResponse)]}},
        ARROW: _stream(STREAM_OUT),
    },
}

RANKING: dict[str, Any] = {
    "responses": {200: RANKED, **DOCUMENTED},
    "response_model": None,
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": _ref(RankRequest)}, ARROW: _stream(STREAM_IN)},
        }
    },
}
"""Of the operations that rank, for FastAPI's decorators: they read and write their bodies themselves."""


def describe(app: FastAPI) -> None:
    """Makes the document of an app name the schemas that ``RANKING`` refers to."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            made.setdefault("components", {}).setdefault("schemas", {}).update(_MODELS["$defs"])
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
