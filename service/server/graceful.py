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
        config: configuration of uvicorn with an application of ``create_app``; ``timeout_graceful_shutdown`` bounds
            the time to finish the requests in progress.
        drain_seconds: seconds in which load balancers notice that the process is not ready.
        end_seconds: with a supervisor, which decides when to kill this process, instead of the second signal: seconds
            after the first signal in which the process ends in any case.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, end_seconds: float | None = None) -> None:
        super().__init__(config)
        self._drain_seconds, self._end_seconds = drain_seconds, end_seconds
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
        is_first = self._close_time == math.inf
        if self._end_seconds is None:
            if not is_first:
                os._exit(SIGNAL_EXIT_BASE + sig)
        elif not self.started:  # it may wait for models, and has hardly any request
            os._exit(SIGNAL_EXIT_BASE + sig)
        elif not is_first:
            return
        else:  # the supervisor does not wait for this process if somebody else has sent the signal
            last = threading.Timer(self._end_seconds, os._exit, [1])
            last.daemon = True
            last.start()
        self._close_time = time.monotonic()
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
