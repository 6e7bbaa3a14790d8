"""Bounds the memory of parsed requests: Python objects and decompressed columns take far more than the body."""

from __future__ import annotations

import asyncio
from collections import deque

from service.engine.errors import QueueFullError

SMALL_BYTES = 16 * 1024
"""Size of a body up to which it never waits behind larger ones."""
LARGE_BYTES = 256 * 1024
"""Size of a body from which its elements are counted; the parsed form of a smaller one takes a few megabytes."""
ELEMENT_BYTES = 8
"""Bytes of a body to which the parsed form of one element, list or object of JSON corresponds: about 100 bytes."""


def json_size(body: bytes) -> int:
    """Return the size of a JSON body, or that of one with as many elements, lists and objects, if that is larger."""
    if len(body) < LARGE_BYTES:
        return len(body)
    return max(len(body), ELEMENT_BYTES * sum(map(body.count, (b",", b"[", b"{"))))


class ParsedBodies:
    """Bounds the bytes of bodies that are parsed at a time; further requests wait, in order of arrival.

    The parsed form of JSON takes up to 13 times its size (see ``json_size``). It lives until the
    request is scored, so without a bound the parsed forms of all waiting requests would exist at once. A body of any
    size is parsed if no other is. Not thread-safe: all calls come from the event loop.

    Args:
        max_bytes: maximum number of bytes of parsed bodies.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def acquire(self, size: int) -> None:
        """Wait until a body of this size may be parsed, and count it; ``change`` stops counting it."""
        if size > SMALL_BYTES and (self._waiting or not self._fits(size)):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, size))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.change(-size)
                raise
        else:
            self._held += size

    def require_room(self, size: int, more: int) -> None:
        """Raise ``QueueFullError`` if a parsed body of ``size`` bytes must not grow by ``more`` bytes."""
        if more > 0 and self._held > size and self._held + more > self._max_bytes:
            raise QueueFullError

    def change(self, size: int) -> None:
        """Change the number of bytes that are held, and parse waiting bodies that fit now."""
        self._held += size
        while self._waiting and (self._waiting[0][0].cancelled() or self._fits(self._waiting[0][1])):
            turn, waiting_size = self._waiting.popleft()
            if not turn.cancelled():
                self._held += waiting_size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._max_bytes
