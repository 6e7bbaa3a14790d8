"""Measure the service under overload and under attack."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.bench.attacks import ATTACKS, RETRIES
from pipelines.bench.harness import Harness
from pipelines.bench.server_process import ServerProcess
from pipelines.console import print_status
from ranking.errors import RankerError
from ranking.temporary_folders import temporary_folder
from service.settings import ROWS_PER_REQUEST

FORM, CLIENTS = "ids", 32
MAX_ADMITTED = 50
"""Maximum number of admitted requests under overload; the service rejects the others."""
RETRY_QUEUE_ROWS = 8_000
"""Maximum number of candidates of admitted requests while clients retry at once."""
OVERLOAD_FACTOR = 5
"""Rate of the overload, as a multiple of the rate of the closed loop."""
OTHER_CLIENTS = 4
"""Number of regular clients during an attack."""
CLOSED_LOOP_SHARE = 1 / 6
"""Duration of each closed loop, as a share of the duration of the overload."""


def measure_overload(harness: Harness) -> dict[str, Any]:
    """Measure a closed loop, an open loop of five times its rate, the closed loop again, and clients that retry."""
    candidates, seconds = _candidates(harness), harness.sizes.overload_seconds
    turns = []
    for turn in range(harness.sizes.turns):
        with harness.service(max_queue_rows=MAX_ADMITTED * max(candidates, ROWS_PER_REQUEST)) as server:
            _closed_loop(harness, server, CLIENTS)  # Warms up the service.
            alone, resident = _closed_loop(harness, server, CLIENTS), server.resident_bytes()
            rate = OVERLOAD_FACTOR * alone["per_second"]
            crowd = harness.open_loop(server, FORM, candidates, rate, seconds, seed=turn)
            grown = server.resident_bytes() / resident
            after = _closed_loop(harness, server, CLIENTS)
        retries = _measure_retries(harness)
        turns.append({"alone": alone, "crowd": crowd, "after": after, "grown": grown, "retries": retries})
    return {
        "candidates": candidates,
        "clients": CLIENTS,
        "times": OVERLOAD_FACTOR,
        "admitted": MAX_ADMITTED,
        "turns": turns,
    }


def measure_attacks(harness: Harness) -> dict[str, Any]:
    """Measure regular clients before and during each attack, and the growth of the service's memory in it.

    ``measure_overload`` covers clients that retry: the service must reject regular clients in favor of theirs.
    """
    turns = []
    for _ in range(harness.sizes.turns):
        loads = {}
        with temporary_folder("bench") as feedback, harness.service(feedback_dir=feedback) as server:
            _closed_loop(harness, server, OTHER_CLIENTS)  # Warms up the service.
            for name in ATTACKS:
                if name == RETRIES:
                    continue
                before, resident = _closed_loop(harness, server, OTHER_CLIENTS), server.resident_bytes()
                with _attack(name, server):
                    during = _closed_loop(harness, server, OTHER_CLIENTS)
                    loads[name] = {
                        "before": before,
                        "during": during,
                        "grown_bytes": server.resident_bytes() - resident,
                    }
        turns.append(loads)
    return {"candidates": _candidates(harness), "clients": OTHER_CLIENTS, "turns": turns}


def _measure_retries(harness: Harness) -> dict[str, dict[str, float]]:
    """Measure clients that retry at once after a rejection, by the counters of the service.

    Returns:
        Number of clients → ``answers`` and ``rejections`` per second, and ``answers_per_cpu_second`` of the service.
    """
    measured = {}
    with harness.service(max_queue_rows=RETRY_QUEUE_ROWS) as server:
        _closed_loop(harness, server, CLIENTS)  # Warms up the service.
        for clients in harness.sizes.retrying_clients:
            before = server.responses()
            with _attack(RETRIES, server, clients):  # It is connected, but has sent nothing yet.
                start, cpu = time.monotonic(), server.cpu_seconds()
                time.sleep(harness.sizes.overload_seconds * CLOSED_LOOP_SHARE)
                seconds, cpu = time.monotonic() - start, server.cpu_seconds() - cpu
            after = server.responses()  # After the attack: the service responds to this request like to any other.
            answers, rejections = (after[status] - before[status] for status in ("200", "429"))
            print_status(f"{clients} clients that retry at once: {answers / seconds:.1f} answers/s")
            measured[str(clients)] = {
                "answers": answers / seconds,
                "rejections": rejections / seconds,
                "answers_per_cpu_second": answers / cpu,
            }
    return measured


def _candidates(harness: Harness) -> int:
    return min(harness.sizes.overload_candidates, harness.max_candidates)


def _closed_loop(harness: Harness, server: ServerProcess, clients: int) -> dict[str, Any]:
    seconds = harness.sizes.overload_seconds * CLOSED_LOOP_SHARE
    return harness.closed_loop(server, FORM, _candidates(harness), clients, seconds)


@contextmanager
def _attack(name: str, server: ServerProcess, *arguments: int) -> Iterator[None]:
    """Attack a server during the block.

    Raises:
        RankerError: the attacking process did not start, or ended before the block.
    """
    print_status(f"attack: {name}")
    command = [sys.executable, "-m", "pipelines.bench.attacks", name, *map(str, (server.port, *arguments))]
    cores = sorted(os.sched_getaffinity(0).difference(server.cores)) or server.cores
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cores)) as attack:
        try:
            assert attack.stdout is not None
            if not attack.stdout.readline():
                raise RankerError(f"{' '.join(command)} failed")
            yield
            if attack.poll() is not None:
                raise RankerError(f"{' '.join(command)} ended")
        finally:
            attack.kill()
