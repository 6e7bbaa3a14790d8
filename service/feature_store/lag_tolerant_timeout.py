"""A timeout that does not mistake a delay of the event loop for one of the store."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

MAX_LAG_SECONDS = 0.002
"""Delay up to which the event loop counts as punctual. uvloop's clock has a resolution of one millisecond."""
MAX_EXTENSIONS = 3
"""Maximum number of extensions, so that a permanently delayed event loop does not wait indefinitely."""


class LagTolerantTimeout:
    """Like ``asyncio.timeout``, but extended when the event loop itself was delayed: the answer may have arrived.

    Otherwise a busy process would mistake its own delay for a slow store, and open the circuit breaker.

    Args:
        seconds: time limit of the enclosed block.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._schedule(self._seconds, MAX_EXTENSIONS)
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(error_type, error, traceback)

    def _schedule(self, seconds: float, extensions: int) -> None:
        due = self._loop.time() + seconds
        self._timer = self._loop.call_at(due, self._expire, due, extensions)

    def _expire(self, due: float, extensions: int) -> None:
        lag = self._loop.time() - due
        if extensions and lag > MAX_LAG_SECONDS:
            self._schedule(min(lag, self._seconds), extensions - 1)
        else:
            self._timeout.reschedule(self._loop.time())
