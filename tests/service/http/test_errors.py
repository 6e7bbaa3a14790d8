"""Errors of the service as HTTP responses."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from service.engine.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    QueueFullError,
    ScoringError,
    TooManyExplanationsError,
)
from service.http.errors import install_error_handlers
from service.models.registry import LOADING, ModelNotFoundError, ModelUnavailableError
from service.protocol.problems import Problem

RETRY = {"retry-after": "1"}


def client(error: Exception) -> TestClient:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/")
    async def fail() -> None:
        raise error

    return TestClient(app)


@pytest.mark.parametrize(
    ("error", "status", "detail", "headers"),
    [
        (ModelNotFoundError("no model 'x' is served"), 404, "no model 'x' is served", {}),
        (QueueFullError(), 429, "too many candidates are waiting to be ranked; try again later", RETRY),
        (
            TooManyExplanationsError(),
            429,
            "too many requests with 'explain' are waiting for contributions; try again later, or without 'explain'",
            RETRY,
        ),
        (ModelUnavailableError(LOADING), 503, "the models are being loaded: try again", RETRY),
        (DeadlineExceededError("deadline_ms = 5 passed"), 504, "deadline_ms = 5 passed", {}),
        (
            HTTPException(405, headers={"Allow": "POST"}),
            405,
            "this path does not allow this method: use POST",
            {"allow": "POST"},
        ),
        (Problem(408, "too slow", headers={"Connection": "close"}), 408, "too slow", {"connection": "close"}),
        (InvalidRequestError("items[3].id", "is null"), 422, "items[3].id: is null", {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_handlers_answer_with_problem_document(
    error: Exception, status: int, detail: str, headers: dict[str, str]
) -> None:
    response = client(error).get("/")
    title = HTTPStatus(status).phrase  # that of 422 depends on the version of Python
    errors = [{"field": "items[3].id", "reason": "is null"}] if status == 422 else []
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail, "errors": errors}
    body = json.dumps(document, separators=(",", ":")).encode()
    assert response.status_code == status
    assert response.content == body
    standard_headers = {"content-type": "application/problem+json", "content-length": str(len(body))}
    assert dict(response.headers) == headers | standard_headers


def test_error_handlers_client_disconnect_is_499_without_body() -> None:
    response = client(ClientDisconnect()).get("/")
    assert (response.status_code, response.content) == (499, b"")


def test_error_handlers_leave_other_errors_to_the_gateway() -> None:
    with pytest.raises(ScoringError):
        client(ScoringError("no memory")).get("/")
