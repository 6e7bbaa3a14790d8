"""``ParsedBodies``: how many bodies are parsed at a time."""

from __future__ import annotations

import asyncio

import pytest

from service.engine import parsed_bodies
from service.engine.errors import QueueFullError
from service.engine.parsed_bodies import ELEMENT_BYTES, ParsedBodies, ParsedBody, json_size


@pytest.fixture(autouse=True)
def _small_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_bodies, "SMALL_BYTES", 0)


async def test_parsed_bodies_above_the_limit_wait_in_order_of_arrival() -> None:
    bodies = ParsedBodies(100)
    first, second = await bodies.acquire(60), await bodies.acquire(40)
    started: list[str] = []

    async def parse(name: str, size: int) -> ParsedBody:
        body = await bodies.acquire(size)
        started.append(name)
        return body

    tasks = [asyncio.create_task(parse(name, size)) for name, size in (("large", 70), ("small", 1))]
    await asyncio.sleep(0)
    second.release()
    await asyncio.sleep(0.01)
    assert started == [], "a small body does not pass a large one that waits"
    first.release()
    held = await asyncio.gather(*tasks)
    assert started == ["large", "small"]
    for body in held:
        body.release()
    (await bodies.acquire(100)).release()


async def test_parsed_bodies_small_ones_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_bodies, "SMALL_BYTES", 5)
    bodies = ParsedBodies(100)
    large = await bodies.acquire(1_000)
    waiting = asyncio.create_task(bodies.acquire(6))
    await asyncio.sleep(0)
    (await bodies.acquire(5)).release()
    assert not waiting.done()
    large.release()
    (await waiting).release()


async def test_parsed_bodies_any_size_is_parsed_alone() -> None:
    bodies = ParsedBodies(100)
    large = await bodies.acquire(1_000)
    waiting = asyncio.create_task(bodies.acquire(1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    large.release()
    (await waiting).release()


async def test_parsed_bodies_cancelled_wait_holds_nothing() -> None:
    bodies = ParsedBodies(100)
    first = await bodies.acquire(100)
    waiting = [asyncio.create_task(bodies.acquire(50)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    first.release()
    waiting[1].cancel()  # its turn has come, but it has not run yet
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [task.cancelled() for task in waiting] == [True, True, False]
    waiting[2].result().release()
    (await bodies.acquire(100)).release()


async def test_parsed_body_that_decompresses_beyond_the_limit_is_rejected_beside_others() -> None:
    bodies = ParsedBodies(100)
    first, second = await bodies.acquire(10), await bodies.acquire(10)
    first.grow(80)
    first.grow(5)
    with pytest.raises(QueueFullError):
        second.grow(21)
    second.grow(20)
    first.release()
    second.grow(1_000)
    second.release()
    (await bodies.acquire(100)).release()


def test_json_size_counts_elements_lists_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json_size(b"1," * 100) == 200
    monkeypatch.setattr(parsed_bodies, "LARGE_BYTES", 100)
    assert json_size(b"1," * 100) == 100 * ELEMENT_BYTES
    assert json_size(b"[" * 50 + b"]" * 50) == 50 * ELEMENT_BYTES
    assert json_size(b'{"":0},' * 100) == 200 * ELEMENT_BYTES
    assert json_size(b'{"text": "' + b"x" * 500 + b'"}') == 512
