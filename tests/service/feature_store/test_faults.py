"""A service under load while its Redis stops, responds slowly and recovers: no request fails."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.support.hand_ranker import ITEMS
from tests.support.http_client import send_request
from tests.support.processes import ServiceProcess, running_service
from tests.support.redis_server import RedisServer
from tests.support.slow_proxy import SlowProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parts

CLIENTS = 8
TIMEOUT_SECONDS = 0.2
BREAKER_SECONDS = 0.5
SLOW_SECONDS = 5.0
"""Delay of the slow store: much longer than ranking takes on a busy machine, so that requests that wait are visible."""
WAIT_SECONDS = 30.0
BODY = {"user": {"id": "u1"}, "context": {"tab": "home"}, "items": {"id": list(range(ITEMS))}}


@dataclass(frozen=True)
class TimedResponse:
    """A response with the start of its request (``time.monotonic()``) and its duration in seconds."""

    start: float
    seconds: float
    status: int
    degraded: bool


class Clients:
    """Clients that send requests continuously."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/rank"
        self.responses: list[TimedResponse] = []
        self._stopped = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            futures = [pool.submit(self._send_requests) for _ in range(CLIENTS)]
            try:
                yield
            finally:
                self._stopped.set()
            for future in futures:
                future.result()

    def responses_during(self, seconds: float) -> list[TimedResponse]:
        """Wait, and return the responses to requests that started in the meantime."""
        start = time.monotonic()
        time.sleep(seconds)
        return [response for response in list(self.responses) if response.start >= start]

    def wait_until_degraded(self, degraded: bool) -> None:
        """Wait until the last responses, three per client, are all degraded or all complete."""

        def check() -> bool:
            last = self.responses[-3 * CLIENTS :]
            return len(last) == 3 * CLIENTS and all(response.degraded == degraded for response in last)

        wait_until(check, f"responses have degraded = {degraded}", timeout=WAIT_SECONDS)

    def _send_requests(self) -> None:
        while not self._stopped.is_set():
            start = time.monotonic()
            response = send_request(self._url, BODY)
            seconds = time.monotonic() - start
            assert response.status == 200, (response.status, response.body)
            self.responses.append(TimedResponse(start, seconds, response.status, response.json()["degraded"]))


def fallbacks(service: ServiceProcess) -> dict[str, float]:
    samples = re.findall(r'ranker_fallbacks_total\{reason="(\w+)",store="redis"\} (\S+)', service.metrics())
    return {reason: float(count) for reason, count in samples}


def test_service_survives_a_store_that_stops_slows_down_and_recovers(
    empty_redis: RedisServer, repository_with_tables: Path
) -> None:
    with (
        SlowProxy(empty_redis.port).running() as proxy,
        running_service(
            repository_with_tables,
            store=f"redis://127.0.0.1:{proxy.port}",
            store_timeout_ms=1000 * TIMEOUT_SECONDS,
            store_breaker_seconds=BREAKER_SECONDS,
            threads=1,
        ) as service,
    ):
        clients = Clients(service.url)
        with clients.running():
            clients.wait_until_degraded(False)
            healthy = clients.responses_during(1.0)

            empty_redis.stop()
            clients.wait_until_degraded(True)
            # A lookup that was under way may have timed out, and opened the circuit breaker first.
            wait_until(lambda: fallbacks(service).get("unreachable"), timeout=WAIT_SECONDS)
            assert service.ready()
            empty_redis.start()
            clients.wait_until_degraded(False)

            proxy.delay = SLOW_SECONDS
            clients.wait_until_degraded(True)
            start, before = time.monotonic(), fallbacks(service)
            slow = clients.responses_during(2.0)
            after, seconds = fallbacks(service), time.monotonic() - start
            proxy.delay = 0.0
            clients.wait_until_degraded(False)
        total = fallbacks(service)

    assert {response.status for response in clients.responses} == {200}
    assert total["timeout"] > 0
    assert sum(total.values()) == sum(response.degraded for response in clients.responses)
    # While the store is slow, only the probes of the circuit breaker wait for it.
    assert slow
    assert all(response.degraded for response in slow)
    assert max(response.seconds for response in slow) < SLOW_SECONDS
    probes = after.get("timeout", 0) - before.get("timeout", 0) + after["unreachable"] - before["unreachable"]
    skipped = after["breaker_open"] - before["breaker_open"]
    assert probes <= 4 * seconds / BREAKER_SECONDS
    assert skipped > len(slow) / 2
    slow_median = median(response.seconds for response in slow)
    assert slow_median < 2 * median(response.seconds for response in healthy) + TIMEOUT_SECONDS / 2
