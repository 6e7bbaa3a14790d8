"""Errors of a call, one class per meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


class RankingError(Exception):
    """Base of all errors of the client.

    Attributes:
        status: HTTP status of the response; None without a response.
        detail: description of the error and its fix.
        field: first invalid field of the request, such as ``items[1].features.price``; None if there is none.
        request_id: id of the request in the log of the service; None if nothing was sent.
        retry_after: seconds to wait before the next attempt, from ``Retry-After``; None without the header.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        field: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail if status is None else f"{status}: {detail}")
        self.status, self.detail, self.field = status, detail, field
        self.request_id, self.retry_after = request_id, retry_after


class InvalidRequestError(RankingError):
    """The request is invalid (400, 406, 415, 422), or cannot be sent as it is (no status)."""

    @classmethod
    def of(cls, field: str, reason: str) -> InvalidRequestError:
        """Build the error of a field that is invalid before the request is sent."""
        return cls(f"{field}: {reason}", field=field)


class AuthenticationError(RankingError):
    """The API key is missing, unknown or expired (401)."""


class PermissionDeniedError(RankingError):
    """The API key lacks the scope of the operation (403)."""


class NotFoundError(RankingError):
    """The model is not served, or the service collects no feedback (404)."""


class RequestTooLargeError(RankingError):
    """The request has too many candidates, events or bytes (413, 431): send fewer at a time."""


class OverloadedError(RankingError):
    """The queue is full or the API key exceeds its rate (429), and the retries are used up or do not fit."""


class UnavailableError(RankingError):
    """The service is loading, shutting down or cannot write feedback (503)."""


class DeadlineExceededError(RankingError):
    """``deadline_ms`` passed before scoring, or the computation of contributions, started (504)."""


class ServiceError(RankingError):
    """The service failed (500), or the response is not that of a ranking service."""


class RequestTimeoutError(RankingError):
    """The timeout of the client passed, or the service did not receive the request in time (408)."""


class ConnectionFailedError(RankingError):
    """The connection could not be opened, or broke before the response was complete."""


ERRORS: dict[int, type[RankingError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    406: InvalidRequestError,
    408: RequestTimeoutError,
    413: RequestTooLargeError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: OverloadedError,
    431: RequestTooLargeError,
    503: UnavailableError,
    504: DeadlineExceededError,
}
"""Error of each status; all others are ``ServiceError``."""


def error_of_response(
    status: int, body: bytes, request_id: str | None = None, retry_after: float | None = None
) -> RankingError:
    """Build the error of a response, which is a problem document (RFC 9457) unless a proxy wrote it.

    Args:
        status: HTTP status.
        body: body of the response.
        request_id: its ``X-Request-ID``.
        retry_after: seconds of its ``Retry-After``.
    """
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    detail, field = None, None
    if isinstance(document, Mapping):
        detail, errors = document.get("detail"), document.get("errors")
        if isinstance(errors, list) and errors and isinstance(errors[0], Mapping):
            field = errors[0].get("field")
    if not isinstance(detail, str):
        detail = f"not a response of the service: {body[:200].decode(errors='replace')!r}"
    return ERRORS.get(status, ServiceError)(
        detail,
        status=status,
        field=field if isinstance(field, str) else None,
        request_id=request_id,
        retry_after=retry_after,
    )
