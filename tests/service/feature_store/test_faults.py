"""A real service under load while its Redis is stopped, slow and there again: nobody is refused, it recovers alone."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from pipelines.jobs.demo import service
from tests.support.hand_ranker import ITEMS
from tests.support.redis_server import RedisServer
from tests.support.slow_proxy import SlowProxy

pytestmark = pytest.mark.parts

CLIENTS = 8
TIMEOUT_SECONDS = 0.2
BREAKER_SECONDS = 0.5
SLOW_SECONDS = 5.0
"""Of each answer of the slow store: far longer than a busy machine takes to rank, so that who waits for it is seen."""
WAIT_SECONDS = 30.0
BODY = json.dumps({"user": {"id": "u1"}, "context": {"tab": "home"}, "items": {"id": list(range(ITEMS))}}).encode()


@dataclass(frozen=True)
class Answer:
    """One answer, when it was asked for and how long it took, in seconds."""

    asked: float
    took: float
    status: int
    degraded: bool


class Load:
    """Clients that ask again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answers: list[Answer] = []
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._ask) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                self._stop.set()
            for client in clients:
                client.result()

    def during(self, seconds: float) -> list[Answer]:
        """What is asked for from now on, for so long, and answered."""
        start = time.monotonic()
        time.sleep(seconds)
        return [answer for answer in list(self.answers) if answer.asked >= start]

    def until(self, degraded: bool) -> None:
        """Waits until answers are degraded or are not any more: 3 from each client."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            last = self.answers[-3 * CLIENTS :]
            if len(last) == 3 * CLIENTS and all(answer.degraded == degraded for answer in last):
                return
            assert time.monotonic() < deadline, f"answers do not become degraded = {degraded}"
            time.sleep(0.02)

    def _ask(self) -> None:
        while not self._stop.is_set():
            asked = time.monotonic()
            request = urllib.request.Request(f"{self._url}/v1/rank", BODY, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:  # raises for any status from 400
                degraded = json.load(response)["degraded"]
            self.answers.append(Answer(asked, time.monotonic() - asked, response.status, degraded))


def fallbacks(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        text = response.read().decode()
    return {
        reason: float(count)
        for reason, count in re.findall(r'ranker_fallbacks_total\{reason="(\w+)",store="redis"\} (\S+)', text)
    }


def ready(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=30) as response:
        status: int = response.status
    return status


def test_a_store_that_stops_is_slow_and_comes_back(
    empty: RedisServer, with_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SlowProxy(empty.port).running() as proxy:
        monkeypatch.setenv("RANKER_STORE", f"redis://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("RANKER_STORE_TIMEOUT_MS", str(1000 * TIMEOUT_SECONDS))
        monkeypatch.setenv("RANKER_STORE_BREAKER_SECONDS", str(BREAKER_SECONDS))
        monkeypatch.setenv("RANKER_THREADS", "1")
        with service(with_tables) as url:
            load = Load(url)
            with load.running():
                load.until(degraded=False)
                healthy = load.during(1.0)

                empty.stop()
                load.until(degraded=True)
                assert ready(url) == 200
                empty.start()
                load.until(degraded=False)

                proxy.delay = SLOW_SECONDS
                load.until(degraded=True)
                start, before = time.monotonic(), fallbacks(url)
                slow = load.during(2.0)
                after, seconds = fallbacks(url), time.monotonic() - start
                proxy.delay = 0.0
                load.until(degraded=False)
            counted = fallbacks(url)

    assert {answer.status for answer in load.answers} == {200}
    assert counted["unreachable"] > 0
    assert counted["timeout"] > 0
    assert sum(counted.values()) == sum(answer.degraded for answer in load.answers)
    # While it is slow nobody waits for it but who tries whether it is back.
    assert slow
    assert all(answer.degraded for answer in slow)
    assert max(answer.took for answer in slow) < SLOW_SECONDS
    tries = after.get("timeout", 0) - before.get("timeout", 0) + after["unreachable"] - before["unreachable"]
    skipped = after["breaker_open"] - before["breaker_open"]
    assert tries <= 4 * seconds / BREAKER_SECONDS
    assert skipped > len(slow) / 2
    assert median(answer.took for answer in slow) < 2 * median(answer.took for answer in healthy) + TIMEOUT_SECONDS / 2
