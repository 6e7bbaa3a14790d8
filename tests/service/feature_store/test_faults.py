"""A service under load while its Redis stops, responds slowly and recovers: no request fails or waits for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from service.feature_store.lookup import BREAKER_SECONDS
from tests.support.background_load import BackgroundLoad
from tests.support.hand_ranker import ITEMS
from tests.support.processes import ServiceProcess, running_service
from tests.support.redis_server import RedisServer
from tests.support.slow_proxy import SlowProxy
from tests.support.waiting import wait_until

CLIENTS = 8
SLOW_SECONDS = 3_600.0
"""Delay of the slow store: none of its responses arrives, so that no lookup closes the circuit breaker."""
BODY = {"user": {"id": "u1"}, "context": {"tab": "home"}, "items": {"id": list(range(ITEMS))}}


class Clients(BackgroundLoad):
    """Clients that send requests continuously."""

    def degraded(self, last: int = 0) -> list[bool]:
        """Whether each of the last responses, or of all, is degraded."""
        return [response.json()["degraded"] for response in self.responses[-last:]]

    def wait_until_degraded(self, degraded: bool) -> None:
        """Wait until the last responses, three per client, are all degraded or all complete."""
        last = 3 * CLIENTS
        wait_until(lambda: self.degraded(last) == [degraded] * last, f"responses have degraded = {degraded}")


def fallbacks(service: ServiceProcess) -> dict[str, float]:
    values = service.metrics()
    reasons = ("timeout", "unreachable", "breaker_open")
    return {reason: values.get(f"ranker_fallbacks_total,reason={reason},store=redis", 0.0) for reason in reasons}


@pytest.mark.system
def test_service_survives_a_store_that_stops_slows_down_and_recovers(
    empty_redis: RedisServer, repository_with_tables: Path
) -> None:
    with (
        SlowProxy(empty_redis.port).running() as proxy,
        running_service(
            repository_with_tables,
            store=f"redis://127.0.0.1:{proxy.port}",
            store_timeout_ms=200,
            threads=1,
        ) as service,
    ):
        clients = Clients(service.port, BODY, count=CLIENTS)
        with clients.running():
            clients.wait_until_degraded(False)

            empty_redis.stop()
            clients.wait_until_degraded(True)
            # A lookup that was under way may have timed out, and opened the circuit breaker first.
            service.wait_until(lambda: fallbacks(service)["unreachable"])
            assert service.ready()
            empty_redis.start()
            clients.wait_until_degraded(False)

            proxy.delay = SLOW_SECONDS
            clients.wait_until_degraded(True)
            start, before = time.monotonic(), fallbacks(service)
            clients.wait_for(500)
            after, seconds = fallbacks(service), time.monotonic() - start
            proxy.delay = 0.0
            clients.wait_until_degraded(False)
        assert set(clients.statuses) == {200}
        service.wait_until(lambda: sum(fallbacks(service).values()) == sum(clients.degraded()))
        assert fallbacks(service)["timeout"] > 0

    # While the store is slow, only the probes of the circuit breaker wait for it, besides the requests that had begun.
    probes = sum(after[reason] - before[reason] for reason in ("timeout", "unreachable"))
    assert probes <= seconds / BREAKER_SECONDS + 1 + CLIENTS
    assert after["breaker_open"] > before["breaker_open"]
