"""ASGI middleware: request context and telemetry, admission, limits of request bodies, and routing by port.

The classes implement ASGI directly, so that they add no copies of bodies and no tasks.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.engine.errors import QueueFullError
from service.protocol import problems
from service.protocol.headers import FEEDBACK_PATH, REQUEST_ID, SAFE_VALUE, SECURITY_HEADERS, TRACEPARENT, is_rank_path
from service.protocol.problems import Problem, bodies_full, body_too_large, encoded_body
from service.server.body_budget import LEASE, BodyLease
from service.server.context import ServerContext
from service.telemetry import logs
from service.telemetry.request_telemetry import RequestTelemetry
from service.telemetry.stage_timer import StageTimer

log = logging.getLogger("ranker.service")


class RequestContextMiddleware:
    """Sets the id and stage timer of each request, limits its body, adds response headers, and records telemetry.

    Args:
        app: Application to wrap.
        telemetry: Records rank requests.
        max_body_bytes: Maximum size of a body; larger ones are rejected with 413 when the limit is exceeded.
        read_seconds: Maximum duration of receiving a body; slower ones are rejected with 408.
        server_timing: Whether responses have a Server-Timing header.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: RequestTelemetry,
        max_body_bytes: int,
        read_seconds: float,
        *,
        server_timing: bool = False,
    ) -> None:
        self._app, self._telemetry = app, telemetry
        self._max_body_bytes, self._read_seconds = max_body_bytes, read_seconds
        self._server_timing = server_timing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; pass events other than HTTP to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        client_id = headers.get(REQUEST_ID, b"")
        request_id = client_id if SAFE_VALUE.fullmatch(client_id) else b"%032x" % random.getrandbits(128)
        timer, id_text = StageTimer(), request_id.decode()
        logs.request_id.set(id_text)
        scope.setdefault("state", {}).update(request_id=id_text, timer=timer)
        receive_limited = BodyLimiter(
            receive, headers, scope["state"].get(LEASE), self._max_body_bytes, self._read_seconds
        )
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = scope["state"]["status"] = message["status"]
                response_headers = message["headers"]
                response_headers += SECURITY_HEADERS
                response_headers.append((REQUEST_ID, request_id))
                if TRACEPARENT in headers:
                    response_headers.append((TRACEPARENT, headers[TRACEPARENT]))
                if self._server_timing and (times := timer.header()):
                    response_headers.append((b"server-timing", times.encode()))
            await send(message)

        async def respond() -> None:
            try:
                await self._app(scope, receive_limited, send_with_headers)
            except Exception as error:
                if status:  # the response has begun, so the server can only close the connection
                    raise
                log.error("request failed", exc_info=error)
                await problems.to_response(problems.internal_error())(scope, receive, send_with_headers)

        if not is_rank_path(scope["path"]):
            try:
                await respond()
            finally:
                if scope["path"] == FEEDBACK_PATH:
                    self._telemetry.feedback_finished(scope, status or 500)
            return
        self._telemetry.request_started()
        try:
            await respond()
        finally:
            self._telemetry.request_finished(scope, status or 500)


class AdmissionMiddleware:
    """Admits rank requests of servers whose protocol does not, such as test clients.

    Such servers do not report disconnects of clients either.

    Args:
        app: Application to wrap; it finds the permit in the state of the request.
        context: Decides on admission.
    """

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; respond with 429 before its body is read if it is not admitted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            permit = self._context.admit(scope["path"], scope["state"])
        except QueueFullError:
            await problems.to_response(problems.queue_full())(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if permit is not None:
                permit.release()


class BodyLimiter:
    """A ``receive`` function that limits the encoding, size, memory and duration of a request's body.

    Args:
        receive: Function to wrap.
        headers: Headers of the request.
        lease: Memory of the body, if the server limits it.
        max_bytes: Maximum size of the body.
        seconds: Maximum seconds until the body is complete.
    """

    __slots__ = ("_bytes", "_complete", "_deadline", "_headers", "_lease", "_max_bytes", "_receive", "_seconds")

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        lease: BodyLease | None,
        max_bytes: int,
        seconds: float,
    ) -> None:
        self._receive, self._headers, self._lease = receive, headers, lease
        self._max_bytes, self._seconds = max_bytes, seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._complete = False
        self._bytes = 0

    async def __call__(self) -> Message:
        """Receive the next message.

        Raises:
            Problem: 408, 413, 415 or 429.
        """
        if self._complete:
            return await self._receive()
        if not self._bytes:
            self._check_headers()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            reason = f"the body took more than {self._seconds:g} s: send it faster, or fewer candidates"
            raise Problem(408, reason, headers={"Connection": "close"}) from None
        if self._lease is not None and message.get("more_body", False):
            pause = self._lease.next_pause(len(message["body"]), asyncio.get_running_loop().time())
            if pause:
                self._deadline += pause  # The client did not cause it.
                await asyncio.sleep(pause)
        if self._lease is not None and self._lease.rejected:
            raise bodies_full()
        self._complete = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._max_bytes:
            raise body_too_large(self._max_bytes)
        return message

    def _check_headers(self) -> None:
        """Reject a body by its headers, before it is read."""
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_bytes:
            raise body_too_large(self._max_bytes)
        encoding = self._headers.get(b"content-encoding", b"")
        if encoding and encoding.strip().lower() != b"identity":
            raise encoded_body(encoding.decode("latin-1"))


class PortRouter:
    """Passes each request to the application of the port on which it arrived.

    Args:
        main: Application of all ports but one; it also receives the lifespan events.
        operations: Application of the operations port.
        port: The operations port.
    """

    def __init__(self, main: ASGIApp, operations: ASGIApp, port: int) -> None:
        self._main, self._operations, self._port = main, operations, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or the lifespan."""
        is_operation = scope["type"] != "lifespan" and scope["server"][1] == self._port
        await (self._operations if is_operation else self._main)(scope, receive, send)
