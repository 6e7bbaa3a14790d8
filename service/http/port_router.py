"""Two applications behind two ports of one server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class PortRouter:
    """Gives each request to the application of the port that it came in by.

    Args:
        main: of every other port; it also starts and ends what both share (ASGI's lifespan).
        operations: of the port of operations.
        port: of operations.
    """

    def __init__(self, main: ASGIApp, operations: ASGIApp, port: int) -> None:
        self._main, self._operations, self._port = main, operations, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event of the server."""
        of_operations = scope["type"] != "lifespan" and scope["server"][1] == self._port
        await (self._operations if of_operations else self._main)(scope, receive, send)
