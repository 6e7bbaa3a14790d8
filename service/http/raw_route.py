"""Route without FastAPI's conversion of arguments."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class RawRoute(APIRoute):
    """A route that is described in the OpenAPI document but called with the request and its path parameters only.

    FastAPI's conversion of arguments costs a small request as much as its scoring. Dependencies are ignored.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a matching request, or with 405 if its method differs."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive), **scope["path_params"])
        await response(scope, receive, send)
