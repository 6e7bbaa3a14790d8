"""Maps the errors of the service to problem documents; no layer below ``http`` knows status codes of its errors."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.engine.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    QueueFullError,
    TooManyExplanationsError,
)
from service.models.registry import ModelNotFoundError, ModelUnavailableError
from service.protocol.problems import (
    CLIENT_CLOSED,
    RETRY_AFTER,
    Problem,
    explanations_full,
    internal_error,
    invalid_field,
    queue_full,
    to_response,
)

SERVING_ERRORS = (
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    TooManyExplanationsError,
    ModelUnavailableError,
    DeadlineExceededError,
)
EXPECTED_ERRORS = (Problem, HTTPException, *SERVING_ERRORS)
"""Errors that ``to_problem`` converts; any other is answered with 500."""


def to_problem(error: Exception) -> Problem:
    """Convert one of ``EXPECTED_ERRORS`` to the problem that the client receives."""
    match error:
        case Problem():
            return error
        case HTTPException(status_code=405):
            allowed = (error.headers or {}).get("Allow", "another method")
            return Problem(
                405, f"this path does not allow this method: use {allowed}", headers=dict(error.headers or {})
            )
        case HTTPException():
            return Problem(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        case InvalidRequestError():
            return invalid_field(error.field, error.reason)
        case ModelNotFoundError():
            return Problem(404, str(error))
        case QueueFullError():
            return queue_full()
        case TooManyExplanationsError():
            return explanations_full()
        case ModelUnavailableError():
            return Problem(503, str(error), headers=RETRY_AFTER)
        case DeadlineExceededError():
            return Problem(504, str(error))
    raise error


def install_error_handlers(app: FastAPI) -> None:
    """Make the application answer errors in the form of the path. It raises unexpected ones again, for the log."""

    async def respond(http: Request, error: Exception) -> Response:
        return to_response(to_problem(error), http.url.path)

    async def failed(http: Request, _: Exception) -> Response:
        return to_response(internal_error(), http.url.path)

    async def disconnected(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    for kind in EXPECTED_ERRORS:
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(ClientDisconnect, disconnected)
    app.add_exception_handler(Exception, failed)
