"""Errors as problem documents (RFC 9457), which name the invalid field and reveal no internals."""

from __future__ import annotations

import difflib
import json
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from ranking.schema.models_at import models_at

CLIENT_CLOSED = 499
"""Status recorded in metrics and logs when the client disconnects; it is never received. Proxies use it too."""
RETRY_AFTER_SECONDS = 1
RETRY_AFTER = {"Retry-After": str(RETRY_AFTER_SECONDS)}
"""Header of 429 and 503, in whole seconds; a full queue is processed within one second."""

OPEN_INFERENCE_ROOT = "/v2"
"""Path of the metadata of the service in the Open Inference Protocol."""

MAX_QUOTED_LENGTH = 80
"""Maximum number of characters that an error quotes of a name or a value in a request."""
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
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
}
"""Reasons by pydantic error type, with the fields of its context; pydantic's own messages refer to Python."""
BRANCHES = ("rows", "columns", "int", "constrained-int", "str", "[key]")
"""Parts of the place of an error that are not fields but branches of unions."""
ID_REASON = "must be a 64-bit integer or a string"
"""Reason for a value that is not an id; pydantic reports each branch of the union separately."""


class FieldError(BaseModel):
    """An invalid field of the request."""

    field: str
    reason: str


class ProblemDocument(BaseModel):
    """Body of every error response, except those of the Open Inference Protocol."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []


class ErrorDocument(BaseModel):
    """Body of every error response of the Open Inference Protocol: one line that names the field and the fix."""

    error: str


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


def is_open_inference_path(path: str) -> bool:
    """Whether a path belongs to the Open Inference Protocol, whose errors have the form of ``ErrorDocument``."""
    return path == OPEN_INFERENCE_ROOT or path.startswith("/v2/models/")


def to_response(problem: Problem, path: str = "") -> Response:
    """Convert a problem to an HTTP response in the form of the path, by default a problem document."""
    if is_open_inference_path(path):
        error = ErrorDocument(error=_one_line(problem.detail))
        return Response(error.model_dump_json(), problem.status, problem.headers, "application/json")
    title = HTTPStatus(problem.status).phrase
    document = ProblemDocument(title=title, status=problem.status, detail=problem.detail, errors=problem.errors)
    return Response(document.model_dump_json(), problem.status, problem.headers, "application/problem+json")


def internal_error() -> Problem:
    """Build the 500 problem for an unexpected error."""
    return Problem(500, "the service failed; its log says why")


def invalid_request(error: ValidationError, model: type[BaseModel], message: str = "body") -> Problem:
    """Build the 422 problem that names the invalid fields, at most ``MAX_NAMED_FIELDS``.

    Args:
        error: error of pydantic.
        model: class of the message. Its example in the OpenAPI document shows the right form of a value.
        message: name of the message as a whole.
    """
    if error.error_count() > MAX_VALIDATION_ERRORS:
        return invalid_field(message, f"has {error.error_count()} validation errors")
    reasons: dict[str, list[str]] = {}
    for e in error.errors(include_url=False, include_input=False):
        hint = _hint(e, model) if len(reasons) < MAX_NAMED_FIELDS else ""
        reasons.setdefault(_path(e) or message, []).append(_reason(e) + hint)
    fields = [FieldError(field=field, reason=_join(messages)) for field, messages in reasons.items()][:MAX_NAMED_FIELDS]
    return invalid_fields(fields)


def invalid_fields(fields: list[FieldError]) -> Problem:
    """Build the 422 problem for invalid fields."""
    return Problem(422, "; ".join(f"{e.field}: {e.reason}" for e in fields), fields)


def invalid_field(field: str, reason: str) -> Problem:
    """Build the 422 problem for one invalid field."""
    return invalid_fields([FieldError(field=field, reason=reason)])


def malformed(field: str, reason: str) -> Problem:
    """Build the 400 problem for a body, or a part of it, that cannot be parsed."""
    return Problem(400, f"{field}: {reason}", [FieldError(field=field, reason=reason)])


def too_many_candidates(candidates: int, limit: int) -> Problem:
    """Build the 413 problem for the number of candidates."""
    return Problem(413, f"{candidates} candidates: this service ranks at most {limit} at a time")


def body_too_large(limit: int) -> Problem:
    """Build the 413 problem for the size of a body in bytes."""
    return Problem(413, f"the body is larger than {limit} bytes; send fewer candidates")


def encoded_body(encoding: str) -> Problem:
    """Build the 415 problem for a body with a content coding, such as gzip."""
    quoted = f"{encoding!r:.{MAX_QUOTED_LENGTH}}"
    detail = f"Content-Encoding is {quoted}: send the body without compression and without this header"
    return Problem(415, detail, headers={"Accept-Encoding": "identity"})


def queue_full() -> Problem:
    """Build the 429 problem for a full queue."""
    return Problem(429, "too many candidates are waiting to be ranked; try again later", headers=RETRY_AFTER)


def explanations_full() -> Problem:
    """Build the 429 problem for a request with contributions while too many others wait for theirs."""
    detail = "too many requests with 'explain' are waiting for contributions; try again later, or without 'explain'"
    return Problem(429, detail, headers=RETRY_AFTER)


def bodies_full() -> Problem:
    """Build the 429 problem for a body that does not fit beside the bodies that the process holds."""
    return Problem(429, "too many bytes of request bodies are being received; try again later", headers=RETRY_AFTER)


def unavailable(reason: str) -> Problem:
    """Build the 503 problem for a request that another process, or a later attempt, can serve."""
    return Problem(503, f"{reason}; try again later", headers=RETRY_AFTER)


def _one_line(text: str) -> str:
    """Return text with escapes in place of line breaks and other characters that cannot be printed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _hint(error: Any, model: type[BaseModel]) -> str:
    """Return the fields that a message may have, or an example of a value, as the rest of a reason."""
    place = error["loc"]
    if error["type"] == "extra_forbidden":
        fields = list(dict.fromkeys(name for found in models_at(model, place[:-1]) for name in found.model_fields))
        similar = difflib.get_close_matches(str(place[-1]), fields, 1)
        return f"; did you mean {similar[0]}?" if similar else f"; the fields are {', '.join(fields)}"
    if error["type"] not in ("missing", "model_type", "dict_type", "list_type"):
        return ""
    example: Any = model.model_config.get("json_schema_extra")
    value = example["example"] if isinstance(example, dict) else None
    if not place and isinstance(value, dict):  # the whole message: what it needs
        value = {name: value[name] for name, field in model.model_fields.items() if field.is_required()}
    for part in place:
        if isinstance(part, int):
            value = value[0] if isinstance(value, list) else None
        elif part not in BRANCHES:
            value = value.get(part) if isinstance(value, dict) else None
    return f", such as {json.dumps(value)}" if value else ""


def _path(error: Any) -> str:
    """Convert a pydantic location to a path such as ``items[3].features.price``, without branches of unions.

    The path of the message itself is empty.
    """
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in BRANCHES:
            path += f".{part}" if path else str(part)
    return path


def _join(reasons: list[str]) -> str:
    """Join the reasons for one field."""
    is_id = len(reasons) == 2 and reasons[1] == REASONS["string_type"]  # the branches of ``messages.Id``
    return ID_REASON if is_id else " or ".join(reasons)


def _reason(error: Any) -> str:
    reason = REASONS.get(error["type"])
    if reason is not None:
        return reason.format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ")
