"""Routing of requests to the application of the port on which they arrive."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class PortRouter:
    """Passes each request to the application of the port on which it arrived.

    Args:
        main: application of all ports but one; it also receives the lifespan events.
        operations: application of the operations port.
        port: the operations port.
    """

    def __init__(self, main: ASGIApp, operations: ASGIApp, port: int) -> None:
        self._main, self._operations, self._port = main, operations, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or the lifespan."""
        is_operation = scope["type"] != "lifespan" and scope["server"][1] == self._port
        await (self._operations if is_operation else self._main)(scope, receive, send)
