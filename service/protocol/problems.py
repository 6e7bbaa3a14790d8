"""Errors as RFC 9457 problem+json: what is wrong, in which field, and nothing about our insides."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

CLIENT_CLOSED_REQUEST = 499
"""What proxies log when a client went away; nobody receives it, the metrics count it."""
RETRY_AFTER = {"Retry-After": "1"}
"""In whole seconds; a queue is worked off within the first."""


MOST_ERRORS, MOST_NAMED = 20_000, 100
"""Faults of a request that are looked at; fields that are named."""


PLAINLY = {
    "extra_forbidden": "unknown field",
    "missing": "is missing",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
"""What pydantic says in terms of Python, and of our classes."""


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


def failed() -> Problem:
    """500 for what nobody foresaw."""
    return Problem(500, "the service failed; its log says why")


def invalid_request(error: ValidationError) -> Problem:
    """422 naming the fields of a request that are wrong, the first of them if they are many."""
    if error.error_count() > MOST_ERRORS:  # listing them would take seconds
        reason = f"has {error.error_count()} faults"
        return invalid_field("body", reason)
    reasons: dict[str, list[str]] = {}
    for e in error.errors(include_url=False, include_input=False):
        reasons.setdefault(_path(e), []).append(_reason(e))
    fields = [FieldError(field=field, reason=_joined(several)) for field, several in reasons.items()][:MOST_NAMED]
    return Problem(422, "; ".join(f"{e.field}: {e.reason}" for e in fields), fields)


def invalid_field(field: str, reason: str) -> Problem:
    """Build a 422 problem that names one field."""
    return Problem(422, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def malformed(field: str, reason: str) -> Problem:
    """400 for something that cannot be read at all."""
    return Problem(400, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def too_many(candidates: int, most: int) -> Problem:
    """413 for the number of candidates."""
    return Problem(413, f"{candidates} candidates: this service ranks at most {most} at a time")


def too_large(most: int) -> Problem:
    """413 for the bytes of a body."""
    return Problem(413, f"the body is larger than {most} bytes; send fewer candidates")


def queue_full() -> Problem:
    """429 for a request that would have to wait for too many others."""
    return Problem(429, "too many candidates are waiting to be ranked; try again later", headers=RETRY_AFTER)


def unavailable(reason: str) -> Problem:
    """503 for what another process, or this one soon, can do."""
    return Problem(503, f"{reason}; try again later", headers=RETRY_AFTER)


def _path(error: Any) -> str:
    """``items[3].features.price`` from pydantic's location; the branches of a union are no part of it."""
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("rows", "columns", "int", "constrained-int", "str"):
            path += f".{part}" if path else str(part)
    return path or "body"


def _joined(reasons: list[str]) -> str:
    """The reasons for one field; a union's branches complain one by one."""
    if reasons == ["Input should be a valid integer", "Input should be a valid string"]:
        return "must be an integer or a string"
    return " or ".join(reasons)


def _reason(error: Any) -> str:
    return PLAINLY.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
