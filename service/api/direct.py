"""Operations that read their requests themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class DirectRoute(APIRoute):
    """Described like any other, but called with the request and the path's parameters as they are.

    FastAPI's way of making arguments from a request costs a small one as much as its scoring. Dependencies are not
    looked at.

    Args:
        path: of the operation.
        endpoint: request, path parameters → response.
        options: as FastAPI's routes have them.
    """

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Response]], **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def direct(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive), **scope["path_params"])
            await response(scope, receive, send)

        self.app = direct
