"""Measure the service under overload and under attack, and format the results."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.serving.attacks import ATTACKS, RETRIES
from benchmarks.serving.measured_server import resident_bytes, responses_by_status
from benchmarks.serving.sizes import ServingSizes
from pipelines.bench.harness import Harness
from pipelines.bench.report import caption, medians, rate_and_latencies
from pipelines.bench.server_process import ServerProcess
from pipelines.bench.tables import section, spread, three_digits
from pipelines.console import print_status
from ranking.errors import RankerError
from ranking.temporary_folders import temporary_folder
from service.settings import ROWS_PER_REQUEST

FORM, CLIENTS = "ids", 32
REJECTED = "429"
"""HTTP status of a rejected request."""
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
    candidates, seconds = _candidates(harness), ServingSizes.of(harness).overload_seconds
    turns = []
    for turn in range(harness.sizes.turns):
        with harness.service(max_queue_rows=MAX_ADMITTED * max(candidates, ROWS_PER_REQUEST)) as server:
            _closed_loop(harness, server, CLIENTS)  # Warms up the service.
            alone, resident = _closed_loop(harness, server, CLIENTS), resident_bytes(server)
            rate = OVERLOAD_FACTOR * alone["per_second"]
            crowd = harness.open_loop(server, FORM, candidates, rate, seconds, seed=turn)
            grown = resident_bytes(server) / resident
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
                before, resident = _closed_loop(harness, server, OTHER_CLIENTS), resident_bytes(server)
                with _attack(name, server):
                    during = _closed_loop(harness, server, OTHER_CLIENTS)
                    loads[name] = {
                        "before": before,
                        "during": during,
                        "grown_bytes": resident_bytes(server) - resident,
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
        for clients in ServingSizes.of(harness).retrying_clients:
            before = responses_by_status(server)
            with _attack(RETRIES, server, clients):  # It is connected, but has sent nothing yet.
                start, cpu = time.monotonic(), server.cpu_seconds()
                time.sleep(ServingSizes.of(harness).overload_seconds * CLOSED_LOOP_SHARE)
                seconds, cpu = time.monotonic() - start, server.cpu_seconds() - cpu
            after = responses_by_status(
                server
            )  # After the attack: the service responds to this request like to any other.
            answers, rejections = (after[status] - before[status] for status in ("200", "429"))
            print_status(f"{clients} clients that retry at once: {answers / seconds:.1f} answers/s")
            measured[str(clients)] = {
                "answers": answers / seconds,
                "rejections": rejections / seconds,
                "answers_per_cpu_second": answers / cpu,
            }
    return measured


def _candidates(harness: Harness) -> int:
    return min(ServingSizes.of(harness).overload_candidates, harness.max_candidates)


def _closed_loop(harness: Harness, server: ServerProcess, clients: int) -> dict[str, Any]:
    seconds = ServingSizes.of(harness).overload_seconds * CLOSED_LOOP_SHARE
    return harness.closed_loop(server, FORM, _candidates(harness), clients, seconds)


@contextmanager
def _attack(name: str, server: ServerProcess, *arguments: int) -> Iterator[None]:
    """Attack a server during the block.

    Raises:
        RankerError: the attacking process did not start, or ended before the block.
    """
    print_status(f"attack: {name}")
    command = [sys.executable, "-m", "benchmarks.serving.attacks", name, *map(str, (server.port, *arguments))]
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


def attack_slowdown(turn: Mapping[str, Any], attack: str) -> float:
    """Return the p99 of regular clients during an attack, divided by that before it."""
    ratio: float = turn[attack]["during"]["p99"] / turn[attack]["before"]["p99"]
    return ratio


def format_overload(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the tables of the part ``overload``."""
    turns, factor, clients = measured["turns"], measured["times"], measured["clients"]
    loads = {"alone": f"{clients} clients", "crowd": f"{factor}× that rate", "after": f"{clients} clients, afterwards"}
    overload = section(
        "Overload",
        f"{caption(about)} {measured['candidates']} candidates, ids, at most {measured['admitted']} admitted "
        f"requests. A closed loop of {clients} clients, Poisson arrivals at {factor} times its rate, then the closed "
        "loop again. Latencies in milliseconds.",
        ("load", "responses/s", "p50", "p99", "rejected (429)", "p99 of rejections", "other failures"),
        [(label, *_overload_cells([turn[name] for turn in turns])) for name, label in loads.items()],
    )
    return overload + _retries(measured, about)


def _retries(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the answers and rejections of clients without back-off; empty for results without them."""
    turns = [turn["retries"] for turn in measured["turns"] if "retries" in turn]
    if not turns:
        return ""
    levels = list(turns[0])
    best = [max(turn[level]["answers"] for level in levels) for turn in turns]
    rows = []
    for level in levels:
        answers, rejections = medians([turn[level] for turn in turns], "answers", "rejections")
        shares = [turn[level]["answers"] / most for turn, most in zip(turns, best, strict=True)]
        rows.append((f"{int(level):,}", f"{answers:,.0f}", f"{rejections:,.0f}", spread(shares, ".2f")))
    return "\n" + section(
        "Clients that retry at once",
        f"{caption(about)} Clients that send their next request as soon as they have a response, also after a 429. "
        "Answers and rejections per second by the counters of the service, with the clients on other cores.",
        ("clients", "answers/s", "rejected (429)/s", "of the peak"),
        rows,
    )


def _overload_cells(loads: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Format the rate and latencies of responses, the share and p99 of rejections, and the number of other failures."""
    rate, p50, p99 = medians(loads, "per_second", "p50", "p99")
    rejected = statistics.median(load["failed"].get(REJECTED, 0) / load["sent"] for load in loads)
    rejection_p99 = statistics.median(load["failed_p99"].get(REJECTED, 0.0) for load in loads)
    other_failures = sum(sum(load["failed"].values()) - load["failed"].get(REJECTED, 0) for load in loads)
    return (
        f"{rate:,.0f}",
        three_digits(p50),
        three_digits(p99),
        f"{rejected:.0%}",
        three_digits(rejection_p99) if rejected else "–",
        str(other_failures),
    )


def format_attacks(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the table of the part ``attacks``."""
    turns = measured["turns"]
    rows = [
        (
            name,
            rate_and_latencies([turn[name]["before"] for turn in turns]),
            rate_and_latencies([turn[name]["during"] for turn in turns]),
            spread([attack_slowdown(turn, name) for turn in turns], ".2f"),
        )
        for name in turns[0]
    ]
    return section(
        "Under attack",
        f"{caption(about)} Effect on {measured['clients']} regular clients: {measured['candidates']} candidates, ids, "
        "closed loop. Requests/s, then p50 / p99 in milliseconds.",
        ("attack", "before", "during", "p99, during / before"),
        rows,
    )
