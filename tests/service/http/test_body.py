"""``limit_body``: the time in which a body must arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import Gauge
from starlette.types import Message, Receive

from service.http.body import limit_body
from service.protocol.problems import Problem
from service.server.body_budget import BodyBudget, BodyLease

SECONDS, PAUSE = 0.2, 0.5


@pytest.fixture
def gauge() -> Gauge:
    return Gauge("bytes", "Held bytes.", registry=None)


class PacedLease(BodyLease):
    """A lease whose body is read with a pause after each part."""

    def next_pause(self, size: int, now: float) -> float:
        return PAUSE


def parts(count: int) -> Iterator[Message]:
    for number in range(1, count + 1):
        yield {"type": "http.request", "body": b"x", "more_body": number < count}


async def receive_all(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    return body


def test_pauses_of_the_server_do_not_count_against_the_client(gauge: Gauge) -> None:
    messages = parts(3)

    async def receive() -> Message:
        return next(messages)

    async def run() -> bytes:
        lease = PacedLease(BodyBudget(1_000_000, gauge))
        return await receive_all(limit_body(receive, {}, lease, 1_000, SECONDS))

    assert asyncio.run(run()) == b"xxx"


def test_slow_client_is_rejected_with_408_in_spite_of_pauses(gauge: Gauge) -> None:
    messages = parts(3)

    async def receive() -> Message:
        await asyncio.sleep(0.75 * SECONDS)
        return next(messages)

    async def run() -> bytes:
        lease = PacedLease(BodyBudget(1_000_000, gauge))
        return await receive_all(limit_body(receive, {}, lease, 1_000, SECONDS))

    with pytest.raises(Problem) as problem:
        asyncio.run(run())
    assert problem.value.status == 408


def test_body_that_has_arrived_is_read_after_the_limit(gauge: Gauge) -> None:
    """The client was in time: a busy event loop may have delayed the request."""
    messages = parts(1)

    async def receive() -> Message:
        await asyncio.sleep(0.01)
        return next(messages)

    async def run() -> bytes:
        lease = BodyLease(BodyBudget(1_000_000, gauge))
        lease.complete()
        return await receive_all(limit_body(receive, {}, lease, 1_000, 0.0))

    assert asyncio.run(run()) == b"x"
