"""Errors as RFC 9457 problem+json: what is wrong, in which field, and nothing about our insides."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

log = logging.getLogger("ranker.service")

CLIENT_CLOSED_REQUEST = 499
"""What proxies log when a client went away; nobody receives it, the metrics count it."""


class FieldError(BaseModel):
    """One field of the request that is wrong."""

    field: str
    reason: str


class ProblemDocument(BaseModel):
    """Body of every error."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []


class Problem(Exception):  # noqa: N818 — the RFC's word
    """An error that a client is told.

    Args:
        status: HTTP status code.
        detail: what is wrong and what to do about it.
        errors: the fields at fault.
        headers: such as Retry-After.
    """

    def __init__(
        self, status: int, detail: str, errors: list[FieldError] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors, self.headers = status, detail, errors or [], headers


def response(problem: Problem) -> Response:
    """The problem as an HTTP response."""
    document = ProblemDocument(
        title=HTTPStatus(problem.status).phrase, status=problem.status, detail=problem.detail, errors=problem.errors
    )
    return Response(document.model_dump_json(), problem.status, problem.headers, "application/problem+json")


def install(app: FastAPI) -> None:
    """Makes every error of the app a problem document."""

    @app.exception_handler(Problem)
    async def _known(_: Request, error: Problem) -> Response:
        return response(error)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        return response(Problem(error.status_code, str(error.detail), headers=dict(error.headers or {})))

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        reasons: dict[str, list[str]] = {}
        for e in error.errors():
            reasons.setdefault(_path(e), []).append(_reason(e))
        fields = [FieldError(field=field, reason=_joined(several)) for field, several in reasons.items()]
        malformed = any(e["type"] == "json_invalid" for e in error.errors())
        detail = "; ".join(f"{e.field}: {e.reason}" for e in fields)
        return response(Problem(400 if malformed else 422, detail, fields))

    @app.exception_handler(ClientDisconnect)
    async def _gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def _unknown(_: Request, error: Exception) -> Response:
        log.error("request failed", exc_info=error)
        return response(Problem(500, "the service failed; its log says why"))


def _path(error: Any) -> str:
    """``items[3].features.price`` from pydantic's location; "body" and the branches of a union are no part of it."""
    path = ""
    for part in () if error["type"] == "json_invalid" else error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("body", "rows", "columns", "str", "int"):
            path += f".{part}" if path else str(part)
    return path or "body"


def _joined(reasons: list[str]) -> str:
    """The reasons for one field; a union's branches complain one by one."""
    if reasons == ["Input should be a valid integer", "Input should be a valid string"]:
        return "must be an integer or a string"
    return " or ".join(reasons)


def _reason(error: Any) -> str:
    if error["type"] == "json_invalid":
        return f"not valid JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    if error["type"] == "extra_forbidden":
        return "unknown field"
    return str(error["msg"])


PROBLEM_SCHEMA = ProblemDocument.model_json_schema()
PROBLEM_SCHEMA["properties"]["errors"]["items"] = PROBLEM_SCHEMA.pop("$defs")["FieldError"]

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": PROBLEM_SCHEMA}},
    }
    for status in (400, 404, 413, 415, 422, 504)
}
"""Error responses for the OpenAPI document."""
