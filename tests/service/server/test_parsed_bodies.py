"""How many bodies are parsed at a time."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import Gauge

from service.engine.errors import QueueFullError
from service.server import body_budget
from service.server.body_budget import PARSED_SHARE, BodyBudget, BodyLease


@pytest.fixture(autouse=True)
def _small_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "SMALL_BYTES", 0)


class Bodies:
    """A budget of which bodies of 100 bytes are parsed at a time."""

    def __init__(self) -> None:
        self.budget = BodyBudget(100 * PARSED_SHARE, Gauge("bytes", "Held bytes.", registry=None))

    async def acquire(self, size: int) -> BodyLease:
        lease = BodyLease(self.budget)
        await lease.start_parsing(size)
        return lease


async def test_parsed_bodies_above_the_limit_wait_in_order_of_arrival() -> None:
    bodies = Bodies()
    first, second = await bodies.acquire(60), await bodies.acquire(40)
    started: list[str] = []

    async def parse(name: str, size: int) -> BodyLease:
        body = await bodies.acquire(size)
        started.append(name)
        return body

    tasks = [asyncio.create_task(parse(name, size)) for name, size in (("large", 70), ("small", 1))]
    await asyncio.sleep(0)
    second.end_parsing()
    await asyncio.sleep(0.01)
    assert started == [], "a small body does not pass a large one that waits"
    first.end_parsing()
    held = await asyncio.gather(*tasks)
    assert started == ["large", "small"]
    for body in held:
        body.end_parsing()
    (await bodies.acquire(100)).end_parsing()


async def test_parsed_bodies_small_ones_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "SMALL_BYTES", 5)
    bodies = Bodies()
    large = await bodies.acquire(1_000)
    waiting = asyncio.create_task(bodies.acquire(6))
    await asyncio.sleep(0)
    (await bodies.acquire(5)).end_parsing()
    assert not waiting.done()
    large.end_parsing()
    (await waiting).end_parsing()


async def test_parsed_bodies_any_size_is_parsed_alone() -> None:
    bodies = Bodies()
    large = await bodies.acquire(1_000)
    waiting = asyncio.create_task(bodies.acquire(1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    large.end_parsing()
    (await waiting).end_parsing()


async def test_parsed_bodies_cancelled_wait_holds_nothing() -> None:
    bodies = Bodies()
    first = await bodies.acquire(100)
    waiting = [asyncio.create_task(bodies.acquire(50)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    first.end_parsing()
    waiting[1].cancel()  # its turn has come, but it has not run yet
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [task.cancelled() for task in waiting] == [True, True, False]
    waiting[2].result().end_parsing()
    (await bodies.acquire(100)).end_parsing()


async def test_parsed_body_that_decompresses_beyond_the_limit_is_rejected_beside_others() -> None:
    bodies = Bodies()
    first, second = await bodies.acquire(10), await bodies.acquire(10)
    first.grow_parsed(80)
    first.grow_parsed(5)
    with pytest.raises(QueueFullError):
        second.grow_parsed(21)
    second.grow_parsed(20)
    first.end_parsing()
    second.grow_parsed(1_000)
    second.end_parsing()
    (await bodies.acquire(100)).end_parsing()
