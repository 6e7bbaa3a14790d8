"""A timeout for others: time that this process itself was late does not count against them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

LATE_SECONDS = 0.002
"""By which an event loop may be late and still be called punctual; uvloop's clock counts in milliseconds."""
EXTENSIONS = 3
"""At most so often more time is given, so that a process that is always late waits for nobody for ever."""


class LagTolerantTimeout:
    """As ``asyncio.timeout``, but an event loop that was late looks again before it gives up: the answer may be there.

    Else a busy process would take itself for a slow store, leave it alone, and answer without it.

    Args:
        seconds: that what is awaited inside may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._wait(self._seconds, EXTENSIONS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _wait(self, seconds: float, extensions: int) -> None:
        due = self._loop.time() + seconds
        self._timer = self._loop.call_at(due, self._is_due, due, extensions)

    def _is_due(self, due: float, extensions: int) -> None:
        late = self._loop.time() - due
        if extensions and late > LATE_SECONDS:
            self._wait(min(late, self._seconds), extensions - 1)
        else:
            self._timeout.reschedule(self._loop.time())
