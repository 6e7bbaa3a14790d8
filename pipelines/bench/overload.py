"""The service when more is asked than it can answer, and when some clients attack it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.bench.attacks import ATTACKS
from pipelines.bench.serving import Server
from pipelines.console import log
from ranking.errors import RankerError

FORM, CLIENTS = "ids", 32
ADMITTED = 50
"""Requests of a crowd; more are refused."""
TIMES = 5
"""As many as the service can answer."""
OTHERS = 4
"""Clients beside an attack."""
CLOSED = 1 / 6
"""Of a crowd's seconds, that each closed loop takes."""

Loading = Callable[..., dict[str, Any]]


class Overload:
    """Measures what those notice who are served.

    Args:
        candidates: of each request.
        turns: of everything.
        ours: makes the service with settings.
        load: server, form, candidates, seconds, clients or rate → what a load finds.
        seconds: of a crowd.
    """

    def __init__(self, candidates: int, turns: int, ours: Callable[..., Server], load: Loading, seconds: float) -> None:
        self._candidates, self._turns, self._seconds = candidates, turns, seconds
        self._ours, self._load = ours, load

    def crowd(self) -> dict[str, Any]:
        """As many requests as the service can answer, five times as many, and once more what it can."""
        turns = []
        for turn in range(self._turns):
            with self._ours(max_queue_rows=ADMITTED * self._candidates) as server:
                self._closed(server, CLIENTS)  # whatever is only done once
                alone, resident = self._closed(server, CLIENTS), server.resident_bytes()
                rate = TIMES * alone["per_second"]
                crowd = self._load(server, FORM, self._candidates, self._seconds, rate=rate, seed=turn)
                grown = server.resident_bytes() / resident
                turns.append({"alone": alone, "crowd": crowd, "after": self._closed(server, CLIENTS), "grown": grown})
        return {
            "candidates": self._candidates,
            "clients": CLIENTS,
            "times": TIMES,
            "admitted": ADMITTED,
            "turns": turns,
        }

    def attacks(self) -> dict[str, Any]:
        """Other clients before and during each attack."""
        turns = []
        for _ in range(self._turns):
            found = {}
            with self._ours() as server:
                self._closed(server, OTHERS)
                for name in ATTACKS:
                    before = self._closed(server, OTHERS)
                    with _attacking(name, server):
                        found[name] = {"before": before, "during": self._closed(server, OTHERS)}
            turns.append(found)
        return {"candidates": self._candidates, "clients": OTHERS, "turns": turns}

    def _closed(self, server: Server, clients: int) -> dict[str, Any]:
        return self._load(server, FORM, self._candidates, self._seconds * CLOSED, clients)


@contextmanager
def _attacking(name: str, server: Server) -> Iterator[None]:
    log(name)
    command = [sys.executable, "-m", "pipelines.bench.attacks", name, str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as attack:
        try:
            assert attack.stdout is not None
            if not attack.stdout.readline():
                raise RankerError(f"{' '.join(command)} failed")
            yield
            if attack.poll() is not None:
                raise RankerError(f"{' '.join(command)} ended")
        finally:
            attack.kill()
