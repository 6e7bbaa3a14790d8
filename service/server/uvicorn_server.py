"""uvicorn's server, told to stop the way that load balancers need: first not ready, then closed, then gone."""

from __future__ import annotations

import logging
import math
import os
import time
from types import FrameType

import uvicorn

KILLED = 128
"""A process that ends by a signal exits with this and the signal's number, as shells tell it."""

log = logging.getLogger("ranker.service")


class Server(uvicorn.Server):
    """Stops in steps at the first SIGTERM or SIGINT, and at once at the second.

    It is not ready from the first on but goes on for ``drain_seconds``; then it takes no more connections and finishes
    what it has.

    Args:
        config: of uvicorn, with an app of ``create_app``; ``timeout_graceful_shutdown`` bounds the finishing.
        drain_seconds: how long load balancers take to notice.
        patient: later signals change nothing: a supervisor decides when this process has had its time.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, *, patient: bool = False) -> None:
        super().__init__(config)
        self._drain_seconds, self._patient = drain_seconds, patient
        self._closes = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """As uvicorn calls it, for each signal."""
        if self._closes != math.inf:
            if not self._patient:
                os._exit(KILLED + sig)
            return
        self._closes = time.monotonic()
        if self.started:  # else nobody was told that it is ready
            self._closes += self._drain_seconds
            self.lifespan.state["entrance"].lifecycle.drain()
            log.info("told to stop: not ready from now on, no connections from %g s on", self._drain_seconds)

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn calls it, ten times a second; True ends the serving."""
        return await super().on_tick(counter) or time.monotonic() >= self._closes
