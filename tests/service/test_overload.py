"""Five times what the service can do, and clients that attack it: those who are served hardly notice.

What must hold at any pace of the machine, beside whatever else it does, which takes up to a third of what a core gets
done. How much exactly is for ``ranker bench --only overload attacks`` to say.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from pipelines.bench.attacks import ATTACKS
from pipelines.bench.benchmark import run_benchmark
from pipelines.bench.overload import MAX_ADMITTED
from pipelines.bench.sizes import QUICK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the load needs a core of its own"),
]


LARGE = 1_000
"""Candidates of a request: few of those are as much as the service can do, and the load needs little of a core."""


def measured(part: str, seconds: float) -> dict[str, Any]:
    """One turn of a part of ``ranker bench``, with the reference model."""
    sizes = replace(QUICK, overload_candidates=LARGE, overload_seconds=seconds)
    (found,) = run_benchmark(None, sizes, 1, [part])
    (turn,) = found[part]["measured"]["turns"]
    return dict(turn)


def answers(load: dict[str, Any]) -> int:
    found: int = load["sent"] - sum(load["failed"].values())
    return found


def answers_per_cpu_second(load: dict[str, Any]) -> float:
    """Of the service's, refusals included."""
    return answers(load) / (load["cpu"] / 1000 * load["sent"])


def test_at_five_times_its_capacity_it_goes_on_at_its_capacity() -> None:
    turn = measured("overload", 30.0)
    alone, crowd, after = turn["alone"], turn["crowd"], turn["after"]
    assert alone["failed"] == after["failed"] == {}
    assert set(crowd["failed"]) == {"429"}
    assert crowd["failed"]["429"] > answers(crowd)
    assert answers_per_cpu_second(crowd) >= 0.6 * min(map(answers_per_cpu_second, (alone, after)))
    # nobody waits for more than those who were admitted (Little's law), and who is refused does not wait for them
    assert crowd["p50"] <= 2 * 1000 * MAX_ADMITTED / crowd["per_second"]
    assert crowd["failed_p50"]["429"] <= min(50, crowd["p50"] / 4)
    assert turn["grown"] < 1.05


def test_an_attack_takes_nothing_from_others() -> None:
    turn = measured("attacks", 12.0)
    assert set(turn) == set(ATTACKS)
    for attack, loads in turn.items():
        before, during = loads["before"], loads["during"]
        assert before["failed"] == during["failed"] == {}, attack
        assert answers_per_cpu_second(during) >= 0.5 * answers_per_cpu_second(before), attack
        assert during["p50"] <= 5 * before["p50"], attack
