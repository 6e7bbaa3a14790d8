"""Checks the API key of each request: the scope that its path requires, and its rate limit."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from datetime import UTC, datetime

from starlette.types import Scope

from service.http.auth.keys import Key, Keyring
from service.http.auth.keys import Scope as KeyScope
from service.http.auth.rate_limit import RateLimiter
from service.protocol.headers import is_rank_path
from service.protocol.problems import Problem

log = logging.getLogger("ranker.service")

PUBLIC_PATHS = ("/", "/metrics", "/docs", "/openapi.json", "/console")
"""Paths that need no key: they reveal nothing about users, and Prometheus, probes and browsers send no key."""
PUBLIC_PREFIXES = ("/v2/health/", "/docs/", "/console/")
CONSOLE_API_PREFIX = "/console/api/"
ADMIN_PREFIX = "/v2/repository/"
INSTRUCTION = "send an API key, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


def required_scope(path: str) -> KeyScope | None:
    """Return the scope that a path requires, or None if it is public.

    Paths that are not listed here require ``rank``, so that a new operation is protected by default.
    """
    if path == "/v1/feedback":
        return "feedback"
    if path.startswith(ADMIN_PREFIX):
        return "admin"
    if path.startswith(CONSOLE_API_PREFIX) and not is_rank_path(path):
        return "read"
    if path in PUBLIC_PATHS or (path.startswith(PUBLIC_PREFIXES) and not path.startswith(CONSOLE_API_PREFIX)):
        return None
    return "rank"


class ApiKeyGuard:
    """Rejects requests without a valid key, or above its rate, before their body is read.

    The name of the key is stored in the state of the request, under ``key``.

    Args:
        keyring: valid keys.
    """

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._limiter = RateLimiter()

    def check(self, scope: Scope) -> None:
        """Check the key of a request if its path requires one.

        Raises:
            Problem: 401 if the key is missing, unknown or expired; 403 if it lacks the scope of the path; 429 if the
                request is above its rate.
        """
        required = required_scope(scope["path"])
        if required is None:
            return
        key = self._authorize(scope["headers"], required)
        scope["state"]["key"] = key.name
        if seconds := self._limiter.seconds_until_allowed(key):
            scope["state"]["rejection"] = "rate_limited"
            raise _rate_limited(key, seconds)
        if required == "admin":
            log.info("%s %.200r by API key %s", scope["method"], scope["path"], key.name)

    def _authorize(self, headers: Iterable[tuple[bytes, bytes]], required: KeyScope) -> Key:
        """Return the key of a request.

        Raises:
            Problem: 401 if the key is missing, unknown or expired; 403 if it lacks the scope.
        """
        secret = key_from_headers(headers)
        if secret is None:
            raise _unauthorized(INSTRUCTION)
        key = self._keyring.find(secret)
        if key is None:
            raise _unauthorized(f"this API key is not known: {INSTRUCTION}", "invalid_token")
        if key.expires is not None and key.expired(datetime.now(UTC)):
            raise _unauthorized(f"this API key expired on {key.expires:%Y-%m-%d %H:%M %Z}", "invalid_token")
        if not key.permits(required):
            challenge = f'Bearer realm="ranker", error="insufficient_scope", scope="{required}"'
            detail = f"this API key lacks the scope '{required}': it has {', '.join(key.scopes)}"
            raise Problem(403, detail, headers={"WWW-Authenticate": challenge})
        return key


def key_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the key of a request: X-API-Key, else the bearer token, else None."""
    token = None
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            token = value[7:].strip()
    return token


def _rate_limited(key: Key, seconds: float) -> Problem:
    """Build the 429 problem of a key that may send its next request after some seconds."""
    detail = f"API key '{key.name}' may send {key.max_requests_per_second:g} requests per second: send fewer"
    return Problem(429, detail, headers={"Retry-After": str(math.ceil(seconds))})


def _unauthorized(detail: str, error: str | None = None) -> Problem:
    """Build a 401 problem with the challenge of RFC 6750, section 3."""
    challenge = 'Bearer realm="ranker"' + (f', error="{error}"' if error else "")
    return Problem(401, detail, headers={"WWW-Authenticate": challenge})
