"""Clients that go away, and all the other ways for work to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from service.api.leaving import while_wanted
from service.engine.admission import Admission, Ticket

SECONDS = 30.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs the test; nothing that it started may be left over."""

    async def alone() -> None:
        await asyncio.wait_for(test, SECONDS)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(alone())


def admitted() -> Ticket:
    ticket = Admission(10, 10).enter()
    assert ticket is not None
    return ticket


def test_work_that_ends_first_is_not_disturbed() -> None:
    async def test() -> None:
        ticket = admitted()
        with while_wanted(ticket):
            await asyncio.sleep(0)
        ticket.abandon()
        await asyncio.sleep(0)
        assert ticket.abandoned

    run(test())


def test_nothing_begins_for_a_client_that_is_gone() -> None:
    ticket = admitted()
    ticket.abandon()
    with pytest.raises(ClientDisconnect), while_wanted(ticket):
        pytest.fail("it began")


def test_work_is_cancelled_when_the_client_goes_away() -> None:
    async def test() -> None:
        ticket, ended = admitted(), asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ticket.abandon)
        with pytest.raises(ClientDisconnect), while_wanted(ticket):
            await ended
        assert ended.cancelled()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the task itself goes on"

    run(test())


def test_who_is_cancelled_while_the_client_goes_away_is_cancelled() -> None:
    async def work() -> None:
        with while_wanted(ticket):
            await asyncio.Event().wait()

    ticket = admitted()

    async def test() -> None:
        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        ticket.abandon()
        with pytest.raises(asyncio.CancelledError):
            await working

    run(test())


def test_who_is_cancelled_from_outside_is_cancelled() -> None:
    async def work() -> None:
        with while_wanted(admitted()):
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()

    async def test() -> None:
        working = asyncio.create_task(work())
        await started.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert working.cancelled()

    run(test())


def test_errors_pass() -> None:
    async def test() -> None:
        with pytest.raises(KeyError), while_wanted(admitted()):
            raise KeyError

    run(test())
