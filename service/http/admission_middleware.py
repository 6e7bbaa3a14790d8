"""Admission as ASGI middleware, for requests that come by a server which does not decide of it itself.

Nor does such a server say when a client goes away.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from service.engine.admission import Admission
from service.protocol.problems import queue_full, response


class AdmissionMiddleware:
    """Gives a ticket to each request that ranks, before anything of it is read, or answers 429.

    Args:
        app: what it wraps; finds the ticket in the request's state, under ``ticket``.
        admission: what decides.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http" or not scope["path"].endswith("/rank") or "ticket" in scope["state"]:
            await self._app(scope, receive, send)
            return
        ticket = self._admission.try_acquire()
        if ticket is None:
            await response(queue_full())(scope, receive, send)
            return
        scope["state"]["ticket"] = ticket
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.release()
