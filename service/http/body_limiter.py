"""The body of a request as it comes: so many bytes at most, within so many seconds."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from service.protocol.problems import Problem, too_large


class BodyLimiter:
    """In place of a request's ``receive``.

    Args:
        receive: of the request.
        max_bytes: of the body; it is refused at the first byte too many.
        seconds: in which all of it has to come.
    """

    __slots__ = ("_bytes", "_max_bytes", "_receive", "_seconds", "_until", "_whole")

    def __init__(self, receive: Receive, max_bytes: int, seconds: float) -> None:
        self._receive, self._max_bytes, self._seconds = receive, max_bytes, seconds
        self._until = asyncio.get_running_loop().time() + seconds
        self._whole = False
        self._bytes = 0

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            Problem: 408 or 413.
        """
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            reason = f"the body took more than {self._seconds:g} s: send it faster, or fewer candidates"
            raise Problem(408, reason, headers={"Connection": "close"}) from None
        self._whole = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        return message
