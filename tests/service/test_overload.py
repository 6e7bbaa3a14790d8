"""Tests of the service under overload and under attack.

They assert properties that hold at any speed of the machine and beside other work on it, which takes up to a third of
a core. ``ranker bench --only overload attacks`` measures the exact values.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from pipelines.bench.attacks import ATTACKS, FLOOD, RETRIES
from pipelines.bench.benchmark import run_benchmark
from pipelines.bench.overload import MAX_ADMITTED
from pipelines.bench.sizes import QUICK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the load generator needs its own core"),
]

CANDIDATES = 1_000
"""Candidates per request: a few large requests reach the capacity, so that generating the load needs little CPU."""
MAX_TURNS = 3
"""Turns of the attacks of which one must pass: a burst of other work on the machine slows one turn, a defect all."""
MAX_GROWN_BYTES = 512 * 1024 * 1024
"""Upper bound of the memory that an attack takes; the bodies that never end would take 2 GB."""


def run_turn(part: str, seconds: float) -> dict[str, Any]:
    """Run one turn of a part of ``ranker bench`` with the reference model."""
    sizes = replace(QUICK, overload_candidates=CANDIDATES, overload_seconds=seconds)
    (report,) = run_benchmark(None, sizes, 1, [part])
    (turn,) = report[part]["measured"]["turns"]
    return dict(turn)


def check_attacks(turn: dict[str, Any]) -> None:
    """Check that no attack of one turn degraded the requests of other clients."""
    for attack, loads in turn.items():
        before, during = loads["before"], loads["during"]
        assert before["failed"] == during["failed"] == {}, attack
        assert loads["grown_bytes"] < MAX_GROWN_BYTES, attack
        # The service accepts the feedback of a flood, which takes a part of its CPU time.
        share = 0.3 if attack == FLOOD else 0.5
        assert successes_per_cpu_second(during) >= share * successes_per_cpu_second(before), attack
        assert during["p50"] <= 5 * before["p50"], attack


def successes(load: dict[str, Any]) -> int:
    count: int = load["sent"] - sum(load["failed"].values())
    return count


def successes_per_cpu_second(load: dict[str, Any]) -> float:
    """Successful responses per CPU second of the service, which includes the cost of rejections."""
    return successes(load) / (load["cpu"] / 1000 * load["sent"])


def test_overload_at_five_times_the_capacity_keeps_the_throughput() -> None:
    turn = run_turn("overload", 30.0)
    alone, crowd, after = turn["alone"], turn["crowd"], turn["after"]
    assert alone["failed"] == after["failed"] == {}
    assert set(crowd["failed"]) == {"429"}
    assert crowd["failed"]["429"] > successes(crowd)
    assert successes_per_cpu_second(crowd) >= 0.6 * min(map(successes_per_cpu_second, (alone, after)))
    # Requests wait only for admitted ones (Little's law), and rejections do not wait for those.
    assert crowd["p50"] <= 2 * 1000 * MAX_ADMITTED / crowd["per_second"]
    assert crowd["failed_p50"]["429"] <= min(50, crowd["p50"] / 4)
    assert turn["grown"] < 1.05
    # Clients that retry at once leave half of the CPU time to answers.
    rates = [retries["answers_per_cpu_second"] for retries in turn["retries"].values()]
    assert turn["retries"]["2500"]["rejections"] > 0
    assert rates[-1] >= 0.5 * max(rates)


def test_attacks_do_not_degrade_other_clients() -> None:
    for turns_left in reversed(range(MAX_TURNS)):
        turn = run_turn("attacks", 12.0)
        assert set(turn) == set(ATTACKS) - {RETRIES}
        try:
            check_attacks(turn)
        except AssertionError:
            if not turns_left:
                raise
        else:
            return
