"""Limits of a request's body that apply while it is received."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Receive

from service.protocol.problems import Problem, bodies_full, body_too_large, encoded_body
from service.server.body_budget import BodyLease


class BodyLimiter:
    """A ``receive`` function that limits the encoding, size, memory and duration of a request's body.

    Args:
        receive: Function to wrap.
        headers: Headers of the request.
        lease: Memory of the body, if the server limits it.
        max_bytes: Maximum size of the body.
        seconds: Maximum seconds until the body is complete.
    """

    __slots__ = ("_bytes", "_complete", "_deadline", "_headers", "_lease", "_max_bytes", "_receive", "_seconds")

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        lease: BodyLease | None,
        max_bytes: int,
        seconds: float,
    ) -> None:
        self._receive, self._headers, self._lease = receive, headers, lease
        self._max_bytes, self._seconds = max_bytes, seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._complete = False
        self._bytes = 0

    async def __call__(self) -> Message:
        """Receive the next message.

        Raises:
            Problem: 408, 413, 415 or 429.
        """
        if self._complete:
            return await self._receive()
        if not self._bytes:
            self._check_headers()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            reason = f"the body took more than {self._seconds:g} s: send it faster, or fewer candidates"
            raise Problem(408, reason, headers={"Connection": "close"}) from None
        if self._lease is not None and message.get("more_body", False):
            pause = self._lease.next_pause(len(message["body"]), asyncio.get_running_loop().time())
            if pause:
                self._deadline += pause  # The client did not cause it.
                await asyncio.sleep(pause)
        if self._lease is not None and self._lease.rejected:
            raise bodies_full()
        self._complete = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._max_bytes:
            raise body_too_large(self._max_bytes)
        return message

    def _check_headers(self) -> None:
        """Reject a body by its headers, before it is read."""
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_bytes:
            raise body_too_large(self._max_bytes)
        encoding = self._headers.get(b"content-encoding", b"")
        if encoding and encoding.strip().lower() != b"identity":
            raise encoded_body(encoding.decode("latin-1"))
