"""A service under overload and under attack: other clients are answered, and its queue and its memory are bounded.

``python -m benchmarks.serving --only overload attacks`` measures how well it does; the nightly forms check its ratios.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.attacks import ATTACKS, FEEDBACK_PATH, FLOOD, RETRIES, arriving_bodies, retries_without_backoff
from benchmarks.serving.overload import MAX_ADMITTED, measure_attacks, measure_overload
from benchmarks.serving.reference import write_reference
from benchmarks.serving.sizes import QUICK
from pipelines.bench.benchmark import run_parts
from pipelines.bench.harness import Harness
from service.settings import Settings
from tests.conftest import Once
from tests.support.background_load import BackgroundLoad
from tests.support.memory import memory_bytes
from tests.support.ports import HOST
from tests.support.processes import ServiceProcess, running_service
from tests.support.waiting import TIMEOUT_SECONDS

CANDIDATES = 1_000
"""Candidates per request: a few large requests reach the capacity, so that generating the load needs little CPU."""
MAX_TURNS = 3
"""Turns of a nightly measurement of which one must pass: other work on the machine slows one turn, a defect all."""
MAX_GROWN_BYTES = 512 * 1024 * 1024
"""Upper bound of the memory that an attack takes; the bodies that never end would take 2 GB."""


def run_turn(
    measure: Callable[[Harness], dict[str, Any]], reference: Path, seconds: float, **sizes: Any
) -> dict[str, Any]:
    """Run one turn of a part of the serving benchmark with the reference model."""
    sizes = {"overload_candidates": CANDIDATES, "overload_seconds": seconds} | sizes
    (report,) = run_parts(reference, replace(QUICK, **sizes), 1, {"part": measure})
    (turn,) = report["part"]["measured"]["turns"]
    return dict(turn)


def repeat_until_passed(check: Callable[[], None]) -> None:
    """Call a check of ratios until it passes, at most MAX_TURNS times."""
    for turns_left in reversed(range(MAX_TURNS)):
        try:
            check()
        except AssertionError:
            if not turns_left:
                raise
        else:
            return


def successes(load: dict[str, Any]) -> int:
    count: int = load["sent"] - sum(load["failed"].values())
    return count


def successes_per_cpu_second(load: dict[str, Any]) -> float:
    """Successful responses per CPU second of the service, which includes the cost of rejections."""
    return successes(load) / (load["cpu"] / 1000 * load["sent"])


def check_overload(turn: dict[str, Any]) -> None:
    """Check that all requests are answered, under overload some of them with 429."""
    assert turn["alone"]["failed"] == turn["after"]["failed"] == {}
    assert set(turn["crowd"]["failed"]) == {"429"}
    assert successes(turn["crowd"]) > 0
    assert all(retries["answers"] > 0 for retries in turn["retries"].values())
    assert list(turn["retries"].values())[-1]["rejections"] > 0


@pytest.mark.system
def test_overload_loses_no_request(reference: Path) -> None:
    """A part of the serving benchmark: an open loop of five times the capacity, and clients that retry at once."""
    check_overload(run_turn(measure_overload, reference, 1.5, retrying_clients=(600,)))


@pytest.mark.system
@pytest.mark.nightly(short="test_overload_loses_no_request")
def test_overload_at_five_times_the_capacity_keeps_the_throughput(reference: Path) -> None:
    def check() -> None:
        turn = run_turn(measure_overload, reference, 30.0)
        check_overload(turn)
        alone, crowd, after = turn["alone"], turn["crowd"], turn["after"]
        assert crowd["failed"]["429"] > successes(crowd)
        assert successes_per_cpu_second(crowd) >= 0.6 * min(map(successes_per_cpu_second, (alone, after)))
        # Requests wait only for admitted ones (Little's law), and rejections do not wait for those.
        assert crowd["p50"] <= 2 * 1000 * MAX_ADMITTED / crowd["per_second"]
        assert crowd["failed_p50"]["429"] <= min(50, crowd["p50"] / 4)
        assert turn["grown"] < 1.05
        # Clients that retry at once leave half of the CPU time to answers.
        rates = [retries["answers_per_cpu_second"] for retries in turn["retries"].values()]
        assert rates[-1] >= 0.5 * max(rates)

    repeat_until_passed(check)


@pytest.mark.system
@pytest.mark.nightly(short="test_attack_takes_bounded_memory_and_no_answer_from_others")
def test_attacks_do_not_degrade_other_clients(reference: Path) -> None:
    def check() -> None:
        turn = run_turn(measure_attacks, reference, 12.0)
        assert set(turn) == set(ATTACKS) - {RETRIES}
        for attack, loads in turn.items():
            before, during = loads["before"], loads["during"]
            assert before["failed"] == during["failed"] == {}, attack
            assert loads["grown_bytes"] < MAX_GROWN_BYTES, attack
            # The service accepts the feedback of a flood, which takes a part of its CPU time.
            share = 0.3 if attack == FLOOD else 0.5
            assert successes_per_cpu_second(during) >= share * successes_per_cpu_second(before), attack
            assert during["p50"] <= 5 * before["p50"], attack

    repeat_until_passed(check)


MIB = 1024 * 1024
OVERHEAD = 1.5
"""Upper bound of the memory that the process takes per byte of the budget of bodies."""
OTHER_MEMORY = 96 * MIB
"""Memory for the connections, for a body that is being joined, and for the other requests."""
MAX_ROWS = 3_000
"""Maximum number of candidates of admitted requests; fewer requests fit into it than an attack has clients."""
ROUNDS, LARGE, SMALL = 3, 1, 20
"""Rounds of an attack, and answers to large and small requests of other clients, for which a test waits."""
BODIES = 60
"""Bodies of 8 MB that arrive at a time; the service reads all of them, up to 32 MB/s, before it sees that they end."""
MATRIX: dict[str, tuple[Callable[[int], Generator[None, None, None]], str | None]] = {
    "idle connections": (ATTACKS["1,000 idle connections"], None),
    "slow requests": (ATTACKS["200 connections sending byte by byte"], "slow_headers"),
    "large headers": (ATTACKS["headers of 1 MB"], "large_headers"),
    "truncated bodies": (ATTACKS["truncated bodies"], None),
    "bodies that never end": (partial(arriving_bodies, connections=BODIES), "body_memory"),
    "feedback": (ATTACKS[FLOOD], None),
    "clients that retry at once": (partial(retries_without_backoff, clients=300), "queue_full"),
}
"""Name → attack on a port, and the reason of the rejections that show that it takes effect."""
FEEDBACK_BODIES = partial(arriving_bodies, connections=BODIES, path=FEEDBACK_PATH), "body_memory"


@pytest.fixture(scope="module")
def reference(once: Once) -> Path:
    """The reference model, with as many items as a request has candidates."""
    return once("reference bundle of 2,000 items", lambda folder: write_reference(folder, QUICK.items, QUICK.users))


@pytest.fixture(scope="module")
def service(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    feedback = tmp_path_factory.mktemp("feedback")
    with running_service(repository, threads=1, feedback_dir=feedback, max_queue_rows=MAX_ROWS) as service:
        yield service


class RunningAttack:
    """An attack in a thread of this process."""

    def __init__(self, attack: Generator[None, None, None]) -> None:
        self.rounds = 0
        self._attack, self._stopped = attack, threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[RunningAttack]:
        next(self._attack)  # connects
        self._thread.start()
        try:
            yield self
            assert self._thread.is_alive(), "the attack failed"
        finally:
            self._stopped.set()
            self._thread.join()

    def _run(self) -> None:
        with closing(self._attack):
            while not self._stopped.is_set():
                next(self._attack)
                self.rounds += 1


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        *(pytest.param(*values, id=name, marks=pytest.mark.system) for name, values in MATRIX.items()),
        pytest.param(
            *FEEDBACK_BODIES, id="feedback bodies that never end", marks=[pytest.mark.system, pytest.mark.nightly]
        ),
    ],
)
def test_attack_takes_bounded_memory_and_no_answer_from_others(
    service: ServiceProcess, request_body: dict[str, Any], attack: Any, reason: str | None
) -> None:
    """Clients that hold connections, bodies or the queue must not keep a process from answering others."""
    rejection = f"ranker_rejections_total,reason={reason}"
    items = [{"id": f"v{item}", "features": {"category": "K1" * 100}} for item in range(1_000)]
    budget = Settings(repository=Path()).body_budget
    small = BackgroundLoad(service.port, request_body, count=8)
    large = BackgroundLoad(service.port, request_body | {"items": items}, count=1)
    with small.running(), large.running():
        large.wait_for(5)
        before, peak = memory_bytes(service.process.pid, "VmRSS"), 0
        rejected = service.metrics().get(rejection, 0)
        with RunningAttack(attack(service.port)).running() as running:
            goals = (small.statuses[200] + SMALL, large.statuses[200] + LARGE)

            def others_are_answered_while_the_attack_takes_effect() -> bool:
                nonlocal peak
                peak = max(peak, memory_bytes(service.process.pid, "VmRSS"))
                values = service.metrics()
                assert values["ranker_buffered_body_bytes"] <= budget
                assert values["ranker_queue_rows"] <= MAX_ROWS
                if running.rounds < ROUNDS or (reason and values.get(rejection, 0) == rejected):
                    return False
                return small.statuses[200] >= goals[0] and large.statuses[200] >= goals[1]

            service.wait_until(others_are_answered_while_the_attack_takes_effect)
    allowed = {200, 429} if reason == "queue_full" else {200}
    assert set(small.statuses | large.statuses) <= allowed
    assert peak - before < OVERHEAD * budget + OTHER_MEMORY, (before, peak)
    service.wait_for_metric("ranker_buffered_body_bytes", 0)
    service.wait_for_metric("ranker_queue_rows", 0)
    service.wait_until(lambda: memory_bytes(service.process.pid, "VmRSS") < before + OTHER_MEMORY)
    assert not [name for name in service.metrics() if "status=5" in name]
    assert "Traceback" not in service.output()


@pytest.mark.system
def test_large_lists_of_many_requests_are_not_parsed_at_once(repository: Path) -> None:
    """The parsed form of each body takes about 100 MiB."""
    topics = json.dumps([f"{number:x}" for number in range(1_000_000)]).encode()[: 7 * MIB].rpartition(b",")[0]
    body = b'{"items": [{"id": "v1", "features": {"topics": ' + topics + b"]}}]}"
    requests = 10
    with running_service(repository, threads=1) as service:

        def send(_: int) -> int:
            with closing(http.client.HTTPConnection(HOST, service.port, timeout=TIMEOUT_SECONDS)) as connection:
                connection.request("POST", "/v1/rank", body, {"Content-Type": "application/json"})
                return connection.getresponse().status

        assert send(0) == 200
        before = memory_bytes(service.process.pid, "VmHWM")
        with ThreadPoolExecutor(requests) as pool:
            assert set(pool.map(send, range(requests))) == {200}
        # Besides the bodies themselves, four are parsed at a time, and one of them was before.
        growth = memory_bytes(service.process.pid, "VmHWM") - before
        assert growth < requests * len(body) * OVERHEAD + 3 * 100 * MIB + OTHER_MEMORY
