"""Minimal HTTP/1.1 client connection of the load generator, which shares the machine with the measured service."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SERVER_TIMING = re.compile(rb"\r\nserver-timing: *([^\r]*)", re.IGNORECASE)
CONNECTION_CLOSE = re.compile(rb"\r\nconnection: *close\r", re.IGNORECASE)
STAGE = re.compile(r"([\w-]+);dur=([\d.]+)")


@dataclass(frozen=True)
class RequestBody:
    """Body of a request.

    Attributes:
        data: encoded body.
        content_type: media type of the body, and of the response that the request accepts.
    """

    data: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Response:
    """Response to a request.

    Attributes:
        status: HTTP status; 0 if the connection broke.
        stages: stage → milliseconds, from the ``Server-Timing`` header.
        size: size of the body in bytes.
    """

    status: int
    stages: dict[str, float]
    size: int


BROKEN = Response(0, {}, 0)


class ClientConnection(asyncio.Protocol):
    """Sends one request at a time and waits for its response, which must have a Content-Length."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._expected: int | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> ClientConnection:
        """Connect to a server.

        Raises:
            OSError: the server does not accept the connection.
        """
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def send(self, request: bytes) -> Response:
        """Send a complete request (head and body) and wait for the response."""
        if self._transport is None or not self.is_open:
            return BROKEN
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio callback)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Fail the pending request (asyncio callback)."""
        self._resolve(BROKEN)

    def data_received(self, data: bytes) -> None:
        """Resolve the pending request once its response is complete (asyncio callback)."""
        self._received += data
        if self._expected is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = CONTENT_LENGTH.search(self._received, 0, end)
            if length is None:
                self.close()
                return
            self._expected = end + 4 + int(length[1])
        if len(self._received) >= self._expected:
            if CONNECTION_CLOSE.search(self._received, 0, self._received.find(b"\r\n\r\n") + 2):
                self.close()
            self._resolve(_parse(self._received))
            self._received, self._expected = bytearray(), None

    def _resolve(self, response: Response) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(response)


def _parse(received: bytearray) -> Response:
    end = received.find(b"\r\n\r\n")
    timing = SERVER_TIMING.search(received, 0, end)
    stages = {} if timing is None else {name: float(ms) for name, ms in STAGE.findall(timing[1].decode())}
    return Response(int(received[9:12]), stages, len(received) - end - 4)
