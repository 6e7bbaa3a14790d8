"""Clients that go away, and all the other ways for work to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from service.engine.admission import Admission, Permit
from service.http.routes import cancel_on_disconnect

SECONDS = 30.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs the test; nothing that it started may be left over."""

    async def alone() -> None:
        await asyncio.wait_for(test, SECONDS)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(alone())


def admitted() -> Permit:
    ticket = Admission(10, 10).try_acquire()
    assert ticket is not None
    return ticket


def test_work_that_ends_first_is_not_disturbed() -> None:
    async def test() -> None:
        ticket = admitted()
        with cancel_on_disconnect(ticket):
            await asyncio.sleep(0)
        ticket.cancel()
        await asyncio.sleep(0)
        assert ticket.cancelled

    run(test())


def test_nothing_begins_for_a_client_that_is_gone() -> None:
    ticket = admitted()
    ticket.cancel()
    with pytest.raises(ClientDisconnect), cancel_on_disconnect(ticket):
        pytest.fail("it began")


def test_work_is_cancelled_when_the_client_goes_away() -> None:
    async def test() -> None:
        ticket, ended = admitted(), asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ticket.cancel)
        with pytest.raises(ClientDisconnect), cancel_on_disconnect(ticket):
            await ended
        assert ended.cancelled()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the task itself goes on"

    run(test())


def test_who_is_cancelled_while_the_client_goes_away_is_cancelled() -> None:
    async def work() -> None:
        with cancel_on_disconnect(ticket):
            await asyncio.Event().wait()

    ticket = admitted()

    async def test() -> None:
        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        ticket.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    run(test())


def test_who_is_cancelled_from_outside_is_cancelled() -> None:
    async def work() -> None:
        with cancel_on_disconnect(admitted()):
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
        with pytest.raises(KeyError), cancel_on_disconnect(admitted()):
            raise KeyError

    run(test())
