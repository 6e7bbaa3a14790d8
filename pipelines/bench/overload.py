"""Measure the service under overload and under attack."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.bench.attacks import ATTACKS
from pipelines.bench.harness import Harness
from pipelines.bench.server_process import ServerProcess
from pipelines.console import print_status
from ranking.errors import RankerError

FORM, CLIENTS = "ids", 32
MAX_ADMITTED = 50
"""Maximum number of admitted requests under overload; the service rejects the others."""
OVERLOAD_FACTOR = 5
"""Rate of the overload, as a multiple of the rate of the closed loop."""
OTHER_CLIENTS = 4
"""Number of regular clients during an attack."""
CLOSED_LOOP_SHARE = 1 / 6
"""Duration of each closed loop, as a share of the duration of the overload."""


def measure_overload(harness: Harness) -> dict[str, Any]:
    """Measure a closed loop, an open loop of five times its rate, and the closed loop again."""
    candidates, seconds = _candidates(harness), harness.sizes.overload_seconds
    turns = []
    for turn in range(harness.sizes.turns):
        with harness.service(max_queue_rows=MAX_ADMITTED * candidates) as server:
            _closed_loop(harness, server, CLIENTS)  # Warms up the service.
            alone, resident = _closed_loop(harness, server, CLIENTS), server.resident_bytes()
            rate = OVERLOAD_FACTOR * alone["per_second"]
            crowd = harness.open_loop(server, FORM, candidates, rate, seconds, seed=turn)
            grown = server.resident_bytes() / resident
            after = _closed_loop(harness, server, CLIENTS)
            turns.append({"alone": alone, "crowd": crowd, "after": after, "grown": grown})
    return {
        "candidates": candidates,
        "clients": CLIENTS,
        "times": OVERLOAD_FACTOR,
        "admitted": MAX_ADMITTED,
        "turns": turns,
    }


def measure_attacks(harness: Harness) -> dict[str, Any]:
    """Measure regular clients before and during each attack."""
    turns = []
    for _ in range(harness.sizes.turns):
        loads = {}
        with harness.service() as server:
            _closed_loop(harness, server, OTHER_CLIENTS)  # Warms up the service.
            for name in ATTACKS:
                before = _closed_loop(harness, server, OTHER_CLIENTS)
                with _attack(name, server):
                    loads[name] = {"before": before, "during": _closed_loop(harness, server, OTHER_CLIENTS)}
        turns.append(loads)
    return {"candidates": _candidates(harness), "clients": OTHER_CLIENTS, "turns": turns}


def _candidates(harness: Harness) -> int:
    return min(harness.sizes.overload_candidates, harness.max_candidates)


def _closed_loop(harness: Harness, server: ServerProcess, clients: int) -> dict[str, Any]:
    seconds = harness.sizes.overload_seconds * CLOSED_LOOP_SHARE
    return harness.closed_loop(server, FORM, _candidates(harness), clients, seconds)


@contextmanager
def _attack(name: str, server: ServerProcess) -> Iterator[None]:
    """Attack a server during the block.

    Raises:
        RankerError: the attacking process did not start, or ended before the block.
    """
    print_status(f"attack: {name}")
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
