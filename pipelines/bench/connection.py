"""One HTTP/1.1 connection of the load generator: as little work as a client can do, since it shares the machine."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TIMING = re.compile(rb"\r\nserver-timing: *([^\r]*)", re.IGNORECASE)
STAGE = re.compile(r"([\w-]+);dur=([\d.]+)")


@dataclass(frozen=True)
class Body:
    """What is sent.

    Attributes:
        data: the bytes.
        content_type: their media type, and that of the answer which is asked for.
    """

    data: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: of HTTP; 0 if the connection broke.
        stages: stage → milliseconds, as the server told.
        size: of the body, in bytes.
    """

    status: int
    stages: dict[str, float]
    size: int


BROKEN = Answer(0, {}, 0)


class Connection(asyncio.Protocol):
    """Sends one request after the other and waits for each answer, which must say its Content-Length."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._expected: int | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connects.

        Raises:
            OSError: nobody listens there.
        """
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def ask(self, request: bytes) -> Answer:
        """The answer to a whole request, head and body."""
        assert self._transport is not None
        if self._transport.is_closing():
            return BROKEN
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiter

    def close(self) -> None:
        """Hangs up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """As asyncio calls it."""
        self._answer(BROKEN)

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        self._received += data
        if self._expected is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self._received, 0, end)
            if length is None:
                self.close()
                return
            self._expected = end + 4 + int(length[1])
        if len(self._received) >= self._expected:
            self._answer(_parsed(self._received))
            self._received, self._expected = bytearray(), None

    def _answer(self, answer: Answer) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)


def _parsed(received: bytearray) -> Answer:
    end = received.find(b"\r\n\r\n")
    timing = TIMING.search(received, 0, end)
    stages = {} if timing is None else {name: float(ms) for name, ms in STAGE.findall(timing[1].decode())}
    return Answer(int(received[9:12]), stages, len(received) - end - 4)
