"""The outermost ASGI application: what happens to each request before and after its operation.

It takes the place of one middleware per concern. Each layer would wrap ``receive`` and ``send`` again, which costs a
small request several percent of its CPU time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.auth.guard import ApiKeyGuard
from service.http.body import limit_body
from service.http.errors import EXPECTED_ERRORS, to_problem
from service.http.openapi import RawRoute
from service.protocol.headers import FEEDBACK_PATH, REQUEST_ID, SAFE_VALUE, SECURITY_HEADERS, TRACEPARENT, is_rank_path
from service.protocol.problems import CLIENT_CLOSED, internal_error, to_response
from service.server.body_budget import LEASE, BodyLease
from service.server.context import ServerContext
from service.telemetry import logs
from service.telemetry.request_telemetry import RequestTelemetry
from service.telemetry.stage_timer import StageTimer

log = logging.getLogger("ranker.service")


class Gateway:
    """Identifies, authorizes, admits and answers each request, and records its telemetry.

    Requests to a ``RawRoute`` are answered here; all others, and the events of the lifespan, are passed to FastAPI.

    Args:
        app: FastAPI application with all routes.
        context: limits, and the decision on admission for servers whose protocol does not admit requests, such as test
            clients. Such servers neither report disconnects of clients nor count the bytes that arrive.
        telemetry: records rank and feedback requests.
        guard: checks API keys; None if requests need none.
    """

    def __init__(
        self, app: FastAPI, context: ServerContext, telemetry: RequestTelemetry, guard: ApiKeyGuard | None = None
    ) -> None:
        self._app, self._context, self._telemetry, self._guard = app, context, telemetry, guard
        self._limits = context.settings
        self._routes = [route for route in app.router.routes if isinstance(route, RawRoute)]

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
        state = scope.setdefault("state", {})
        state["request_id"], state["timer"] = id_text, timer
        limits = self._limits
        if (lease := state.get(LEASE)) is None:  # no body, or a server that does not count its bytes
            lease = state[LEASE] = BodyLease(self._context.bodies)
        receive_limited = limit_body(receive, headers, lease, limits.max_body_bytes, limits.read_seconds)
        status, complete = 0, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.body":
                complete = not message.get("more_body", False)
            elif message["type"] == "http.response.start":
                status = state["status"] = message["status"]
                response_headers = message["headers"]
                response_headers += SECURITY_HEADERS
                response_headers.append((REQUEST_ID, request_id))
                if TRACEPARENT in headers:
                    response_headers.append((TRACEPARENT, headers[TRACEPARENT]))
                if times := timer.header():
                    response_headers.append((b"server-timing", times.encode()))
            await send(message)

        path = scope["path"]
        ranks, admitted = is_rank_path(path), "permit" in state
        if ranks:
            self._telemetry.request_started(timer)
        try:
            answer = await self._answer(scope, receive_limited)
            await answer(scope, receive_limited, send_with_headers)
        except Exception as error:
            if status and not complete:  # the response has begun, so the server can only close the connection
                raise
            log.error("request failed", exc_info=error)
            if not status:  # FastAPI raises an error that it has answered
                await to_response(internal_error(), path)(scope, receive, send_with_headers)
        finally:
            if "permit" in state and not admitted:
                state["permit"].release()
            if ranks:
                self._telemetry.request_finished(scope, status or 500)
            elif path == FEEDBACK_PATH:
                self._telemetry.feedback_finished(scope, status or 500)

    async def _answer(self, scope: Scope, receive: Receive) -> ASGIApp:
        """Return what answers a request: its response, or FastAPI if its route is not raw."""
        path = scope["path"]
        try:
            if self._guard is not None:
                self._guard.check(scope)
            self._context.admit(path, scope["state"])
            found = find_route(self._routes, scope["method"], path)
            if found is None:
                return self._app
            scope["route"], parameters = found
            response: Response = await scope["route"].endpoint(Request(scope, receive), **parameters)
        except EXPECTED_ERRORS as error:
            response = to_response(to_problem(error), path)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_CLOSED)
        return response


def find_route(routes: Sequence[RawRoute], method: str, path: str) -> tuple[RawRoute, dict[str, str]] | None:
    """Return the first route that matches a request, and its path parameters; None if none matches."""
    for route in routes:
        if method in (route.methods or ()) and (match := route.path_regex.match(path)):
            return route, match.groupdict()
    return None
