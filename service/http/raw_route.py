"""Operations that read their requests themselves."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class RawRoute(APIRoute):
    """Described like any other, but called with the request and the path's parameters as they are.

    FastAPI's way of making arguments from a request costs a small one as much as its scoring. Dependencies are not
    looked at.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request that matches, or says that another method is wanted."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive), **scope["path_params"])
        await response(scope, receive, send)
