"""uvicorn's server with the shutdown that load balancers need: not ready, then no new connections, then exit."""

from __future__ import annotations

import logging
import math
import os
import time
from types import FrameType

import uvicorn

from service.server.context import STATE_KEY

SIGNAL_EXIT_BASE = 128
"""Added to a signal's number, this is the exit code of a process that the signal ends, as in shells."""

log = logging.getLogger("ranker.service")


class GracefulServer(uvicorn.Server):
    """Stops in steps after the first SIGTERM or SIGINT, and at once after the second.

    After the first signal the process is not ready but accepts connections for ``drain_seconds``. Then it accepts no
    connections and finishes the requests in progress.

    Args:
        config: Configuration of uvicorn with an application of ``create_app``; ``timeout_graceful_shutdown`` bounds
            the time to finish the requests in progress.
        drain_seconds: Seconds in which load balancers notice that the process is not ready.
        ignore_second_signal: Whether a supervisor decides when to kill this process, instead of the second signal.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, *, ignore_second_signal: bool = False) -> None:
        super().__init__(config)
        self._drain_seconds, self._ignore_second_signal = drain_seconds, ignore_second_signal
        self._close_time = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal; uvicorn calls this for each one."""
        if self._close_time != math.inf:
            if not self._ignore_second_signal:
                os._exit(SIGNAL_EXIT_BASE + sig)
            return
        self._close_time = time.monotonic()
        if self.started:  # a process that was never ready need not drain
            self._close_time += self._drain_seconds
            self.lifespan.state[STATE_KEY].lifecycle.drain()
            log.info("received a signal to stop: not ready, connections close in %g s", self._drain_seconds)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop serving; uvicorn calls this ten times a second."""
        return await super().on_tick(counter) or time.monotonic() >= self._close_time
