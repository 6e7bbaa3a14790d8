"""Around every request: its id and trace, its size limit, its stages, and what is told of it afterwards."""

from __future__ import annotations

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs, problems
from service.observer import Observer
from service.stages import Stages

log = logging.getLogger("ranker.service")

SAFE_ID = re.compile(r"[\x21-\x7e]{1,256}")


class Envelope:
    """Pure ASGI middleware, so that nothing is copied on the way.

    Args:
        app: what it wraps.
        observer: told of ranking requests.
        max_body_bytes: larger bodies are refused with 413, at the first byte too many.
        server_timing: whether answers name the stages of a ranking request and their times.
    """

    def __init__(self, app: ASGIApp, observer: Observer, max_body_bytes: int, *, server_timing: bool = False) -> None:
        self._app, self._observer, self._max_body_bytes = app, observer, max_body_bytes
        self._server_timing = server_timing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; passes anything but HTTP through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if SAFE_ID.fullmatch(given) else str(uuid.uuid4())
        logs.request_id.set(request_id)
        stages = Stages()
        scope.setdefault("state", {}).update(request_id=request_id, stages=stages)
        received = 0
        status = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise HTTPException(413, f"the body is larger than {self._max_body_bytes} bytes; send fewer candidates")
            return message

        async def echoing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                echo = MutableHeaders(scope=message)
                echo["X-Request-ID"] = request_id
                if "traceparent" in headers:
                    echo["traceparent"] = headers["traceparent"]
                if self._server_timing and (times := stages.header()):
                    echo["Server-Timing"] = times
            await send(message)

        async def answer() -> None:
            try:
                await self._app(scope, limited, echoing)
            except Exception as error:
                if status:  # the answer has begun: all that is left is to close the connection
                    raise
                log.error("request failed", exc_info=error)
                await problems.response(problems.failed())(scope, receive, echoing)

        if not scope["path"].endswith("/rank"):
            await answer()
            return
        self._observer.arrived()
        try:
            await answer()
        finally:
            self._observer.answered(scope, status or 500)
