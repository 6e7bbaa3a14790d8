"""Calls that stop waiting after a timeout, for functions that may hang with the filesystem of the repository."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


class TooManyCallsError(Exception):
    """As many calls as allowed have not returned yet."""


class BoundedCalls:
    """Runs each call on a daemon thread of its own and stops waiting for it after a timeout.

    A thread that reads a network filesystem without a server cannot be interrupted. A daemon thread does not delay the
    end of the process, in contrast to the threads of an event loop's executor.

    Args:
        seconds: timeout of a call. After it, the call continues in the background.
        max_calls: maximum number of calls that have not returned.
    """

    def __init__(self, seconds: float, max_calls: int) -> None:
        self._seconds = seconds
        self._permits = threading.BoundedSemaphore(max_calls)

    def call(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function.

        Raises:
            TimeoutError: the function does not return in time.
            TooManyCallsError: too many earlier calls have not returned.
        """
        return self._start(function).result(self._seconds)

    async def call_async(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function without blocking the event loop; see ``call``."""
        return await asyncio.wait_for(asyncio.wrap_future(self._start(function)), self._seconds)

    def _start(self, function: Callable[[], Result]) -> Future[Result]:
        if not self._permits.acquire(blocking=False):
            raise TooManyCallsError
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()  # A caller that stops waiting cannot cancel the call.

        def run() -> None:
            try:
                report = partial(future.set_result, function())
            except BaseException as error:
                report = partial(future.set_exception, error)
            self._permits.release()  # Before the caller continues, which may call again.
            report()

        threading.Thread(target=run, name="repository", daemon=True).start()
        return future
