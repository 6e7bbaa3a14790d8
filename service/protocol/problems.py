"""Errors as problem documents (RFC 9457), which name the invalid field and reveal no internals."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

CLIENT_CLOSED = 499
"""Status recorded in metrics and logs when the client disconnects; it is never received. Proxies use it too."""
RETRY_AFTER = {"Retry-After": "1"}
"""Header of 429 and 503, in whole seconds; a full queue is processed within one second."""

MAX_VALIDATION_ERRORS = 20_000
"""Maximum number of validation errors that are listed; listing more takes seconds."""
MAX_NAMED_FIELDS = 100
"""Maximum number of fields that a problem document names."""

REASONS = {
    "extra_forbidden": "unknown field",
    "missing": "is missing",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
"""Reasons by pydantic error type, where pydantic's message refers to Python or to class names."""


class FieldError(BaseModel):
    """An invalid field of the request."""

    field: str
    reason: str


class ProblemDocument(BaseModel):
    """Body of every error response."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []


class Problem(Exception):  # noqa: N818 — the term of RFC 9457
    """An error response.

    Args:
        status: HTTP status code.
        detail: description of the error and its fix.
        errors: invalid fields.
        headers: response headers, such as Retry-After.
    """

    def __init__(
        self, status: int, detail: str, errors: list[FieldError] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors, self.headers = status, detail, errors or [], headers


def to_response(problem: Problem) -> Response:
    """Convert a problem to an HTTP response."""
    title = HTTPStatus(problem.status).phrase
    document = ProblemDocument(title=title, status=problem.status, detail=problem.detail, errors=problem.errors)
    return Response(document.model_dump_json(), problem.status, problem.headers, "application/problem+json")


def internal_error() -> Problem:
    """Build the 500 problem for an unexpected error."""
    return Problem(500, "the service failed; its log says why")


def invalid_request(error: ValidationError) -> Problem:
    """Build the 422 problem that names the invalid fields, at most ``MAX_NAMED_FIELDS``."""
    if error.error_count() > MAX_VALIDATION_ERRORS:
        return invalid_field("body", f"has {error.error_count()} validation errors")
    reasons: dict[str, list[str]] = {}
    for e in error.errors(include_url=False, include_input=False):
        reasons.setdefault(_path(e), []).append(_reason(e))
    fields = [FieldError(field=field, reason=_join(messages)) for field, messages in reasons.items()][:MAX_NAMED_FIELDS]
    return Problem(422, "; ".join(f"{e.field}: {e.reason}" for e in fields), fields)


def invalid_field(field: str, reason: str) -> Problem:
    """Build the 422 problem for one invalid field."""
    return Problem(422, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def malformed(field: str, reason: str) -> Problem:
    """Build the 400 problem for a body, or a part of it, that cannot be parsed."""
    return Problem(400, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def too_many_candidates(candidates: int, limit: int) -> Problem:
    """Build the 413 problem for the number of candidates."""
    return Problem(413, f"{candidates} candidates: this service ranks at most {limit} at a time")


def body_too_large(limit: int) -> Problem:
    """Build the 413 problem for the size of a body in bytes."""
    return Problem(413, f"the body is larger than {limit} bytes; send fewer candidates")


def queue_full() -> Problem:
    """Build the 429 problem for a full queue."""
    return Problem(429, "too many candidates are waiting to be ranked; try again later", headers=RETRY_AFTER)


def unavailable(reason: str) -> Problem:
    """Build the 503 problem for a request that another process, or a later attempt, can serve."""
    return Problem(503, f"{reason}; try again later", headers=RETRY_AFTER)


def _path(error: Any) -> str:
    """Convert a pydantic location to a path such as ``items[3].features.price``, without branches of unions."""
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("rows", "columns", "int", "constrained-int", "str"):
            path += f".{part}" if path else str(part)
    return path or "body"


def _join(reasons: list[str]) -> str:
    """Join the reasons for one field; pydantic reports each branch of a union separately."""
    if reasons == ["Input should be a valid integer", "Input should be a valid string"]:
        return "must be an integer or a string"
    return " or ".join(reasons)


def _reason(error: Any) -> str:
    return REASONS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
