"""Shutdown of a server process in steps: not ready, then no new connections, then exit, as load balancers need."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from socket import socket
from types import FrameType

import uvicorn

from service.server.context import STATE_KEY
from service.settings import KILL_MARGIN_SECONDS

SIGNAL_EXIT_BASE = 128
"""Added to a signal's number, this is the exit code of a process that the signal ends, as in shells."""

ACCEPTS_PER_ITERATION = 16
"""Maximum number of connections that the event loop accepts per iteration.

libuv accepts one per listening socket, too few beside many requests. The connections that wait meanwhile pace clients
that open a connection for each request; without a maximum, accepting them would take the time for ranking.
"""

log = logging.getLogger("ranker.service")


class GracefulServer(uvicorn.Server):
    """Stops in steps after the first SIGTERM or SIGINT, and at once after the second.

    After the first signal the process is not ready but accepts connections for ``drain_seconds``. Then it accepts no
    connections and finishes the requests in progress.

    Args:
        config: Configuration of uvicorn with an application of ``create_app``; ``timeout_graceful_shutdown`` bounds
            the time to finish the requests in progress.
        drain_seconds: Seconds in which load balancers notice that the process is not ready.
        supervised: Whether a supervisor decides when to kill this process, instead of the second signal.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, *, supervised: bool = False) -> None:
        super().__init__(config)
        self._drain_seconds, self._supervised = drain_seconds, supervised
        self._close_time = math.inf
        self._ticked = threading.Event()

    def wait_for_tick(self) -> None:
        """Wait until the event loop has run, from another thread; do not wait before it serves, or at its end."""
        self._ticked.clear()
        if self.started and not self.should_exit:
            self._ticked.wait()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start to accept connections."""
        duplicates = [_duplicate(listener) for listener in sockets or () for _ in range(ACCEPTS_PER_ITERATION - 1)]
        await super().startup(None if sockets is None else [*sockets, *duplicates])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal; uvicorn calls this for each one."""
        if self._supervised and not self.started:  # it may wait for models, and has hardly any request
            os._exit(SIGNAL_EXIT_BASE + sig)
        if self._close_time != math.inf:
            if not self._supervised:
                os._exit(SIGNAL_EXIT_BASE + sig)
            return
        self._close_time = time.monotonic()
        if self._supervised:  # which may not wait for this process, if somebody else has sent the signal
            grace = self.config.timeout_graceful_shutdown or 0
            last = threading.Timer(self._drain_seconds + grace + KILL_MARGIN_SECONDS, os._exit, [1])
            last.daemon = True
            last.start()
        if self.started:  # a process that was never ready need not drain
            self._close_time += self._drain_seconds
            self.lifespan.state[STATE_KEY].lifecycle.drain()
            log.info("received a signal to stop: not ready, connections close in %g s", self._drain_seconds)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop serving; uvicorn calls this ten times a second."""
        self.should_exit = self.should_exit or time.monotonic() >= self._close_time
        self._ticked.set()
        return await super().on_tick(counter)


def _duplicate(listener: socket) -> socket:
    """Duplicate a socket without making it blocking in the other processes that accept its connections."""
    listener.setblocking(False)  # ``dup`` sets the mode of this object, and all duplicates share it
    return listener.dup()
