"""Around every request: its id and trace, its size limit, its stages, and what is told of it afterwards."""

from __future__ import annotations

import logging
import random
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.body_limiter import BodyLimiter
from service.protocol import problems
from service.telemetry import logs
from service.telemetry.request_telemetry import RequestTelemetry
from service.telemetry.stage_timer import StageTimer

log = logging.getLogger("ranker.service")

SAFE_ID = re.compile(rb"[\x21-\x7e]{1,256}")
SECURITY_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
"""Of every answer: it is what it says it is, and about a user, so that nothing on the way keeps it."""


class RequestContextMiddleware:
    """Pure ASGI middleware, so that nothing is copied on the way.

    Args:
        app: what it wraps.
        observer: told of ranking requests.
        max_body_bytes: larger bodies are refused with 413, at the first byte too many.
        read_seconds: bodies that take longer are refused with 408.
        server_timing: whether answers name the stages of a ranking request and their times.
    """

    def __init__(
        self,
        app: ASGIApp,
        observer: RequestTelemetry,
        max_body_bytes: int,
        read_seconds: float,
        *,
        server_timing: bool = False,
    ) -> None:
        self._app, self._observer = app, observer
        self._max_body_bytes, self._read_seconds = max_body_bytes, read_seconds
        self._server_timing = server_timing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; passes anything but HTTP through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if SAFE_ID.fullmatch(given) else b"%032x" % random.getrandbits(128)
        stages, name = StageTimer(), request_id.decode()
        logs.request_id.set(name)
        scope.setdefault("state", {}).update(request_id=name, timer=stages)
        incoming = BodyLimiter(receive, self._max_body_bytes, self._read_seconds)
        status = 0

        async def echoing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                echo = message["headers"]
                echo += SECURITY_HEADERS
                echo.append((b"x-request-id", request_id))
                if b"traceparent" in headers:
                    echo.append((b"traceparent", headers[b"traceparent"]))
                if self._server_timing and (times := stages.header()):
                    echo.append((b"server-timing", times.encode()))
            await send(message)

        async def answer() -> None:
            try:
                await self._app(scope, incoming, echoing)
            except Exception as error:
                if status:  # the answer has begun: all that is left is to close the connection
                    raise
                log.error("request failed", exc_info=error)
                await problems.response(problems.failed())(scope, receive, echoing)

        if not scope["path"].endswith("/rank"):
            await answer()
            return
        self._observer.request_started()
        try:
            await answer()
        finally:
            self._observer.request_finished(scope, status or 500)
