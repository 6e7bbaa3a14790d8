"""Lets a request through if its API key may do what it asks for."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.auth.key_file import Key
from service.http.auth.key_file import Scope as KeyScope
from service.http.auth.keyring import Keyring
from service.http.auth.scopes import required_scope
from service.protocol.problems import Problem, response

log = logging.getLogger("ranker.service")

HOW = "send an API key, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"


class ApiKeyMiddleware:
    """Pure ASGI middleware; refuses before anything of the body is read.

    Args:
        app: what it guards.
        keyring: the keys that are let through.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app, self._keyring = app, keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; passes anything but HTTP through."""
        if scope["type"] == "http" and (wanted := required_scope(scope["path"])) is not None:
            try:
                key = self._allowed(scope["headers"], wanted)
            except Problem as problem:
                await response(problem)(scope, receive, send)
                return
            if wanted == "admin":
                log.info("%s %.200r by API key %s", scope["method"], scope["path"], key.name)
        await self._app(scope, receive, send)

    def _allowed(self, headers: Iterable[tuple[bytes, bytes]], wanted: KeyScope) -> Key:
        """The request's key.

        Raises:
            Problem: 401 for none, an unknown or an expired one; 403 for one without the scope.
        """
        given = presented(headers)
        if given is None:
            raise _unauthorised(HOW, "")
        key = self._keyring.find(given)
        if key is None:
            raise _unauthorised(f"this API key is not known: {HOW}", ', error="invalid_token"')
        if key.expires is not None and key.expired(datetime.now(UTC)):
            raise _unauthorised(f"this API key expired on {key.expires:%Y-%m-%d %H:%M %Z}", ', error="invalid_token"')
        if wanted not in key.scopes:
            challenge = f'Bearer realm="ranker", error="insufficient_scope", scope="{wanted}"'
            detail = f"this API key lacks the scope '{wanted}': it has {', '.join(key.scopes)}"
            raise Problem(403, detail, headers={"WWW-Authenticate": challenge})
        return key


def presented(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key that a request's headers carry: X-API-Key, else a bearer token; None if there is neither."""
    bearer = None
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = value[7:].strip()
    return bearer


def _unauthorised(detail: str, error: str) -> Problem:
    """401 with the challenge that RFC 6750 asks for."""
    return Problem(401, detail, headers={"WWW-Authenticate": f'Bearer realm="ranker"{error}'})
