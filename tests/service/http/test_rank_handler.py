"""``cancel_on_disconnect``: work ends when its client disconnects, and in no other case."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from service.engine.admission import Admission, Permit
from service.http.rank_handler import cancel_on_disconnect

SECONDS = 30.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test and check that it leaves no tasks."""

    async def run_and_check() -> None:
        await asyncio.wait_for(test, SECONDS)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run_and_check())


def acquire_permit() -> Permit:
    permit = Admission(10, 10).try_acquire()
    assert permit is not None
    return permit


def test_cancel_on_disconnect_after_the_work_ended_does_nothing() -> None:
    async def test() -> None:
        permit = acquire_permit()
        with cancel_on_disconnect(permit):
            await asyncio.sleep(0)
        permit.cancel()
        await asyncio.sleep(0)
        assert permit.cancelled

    run(test())


def test_cancel_on_disconnect_of_a_disconnected_client_does_not_start_the_work() -> None:
    permit = acquire_permit()
    permit.cancel()
    with pytest.raises(ClientDisconnect), cancel_on_disconnect(permit):
        pytest.fail("the work started")


def test_cancel_on_disconnect_during_the_work_cancels_it() -> None:
    async def test() -> None:
        permit, work = acquire_permit(), asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(permit.cancel)
        with pytest.raises(ClientDisconnect), cancel_on_disconnect(permit):
            await work
        assert work.cancelled()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the task itself continues"

    run(test())


def test_cancel_on_disconnect_with_simultaneous_cancellation_raises_cancelled_error() -> None:
    async def work() -> None:
        with cancel_on_disconnect(permit):
            await asyncio.Event().wait()

    permit = acquire_permit()

    async def test() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        permit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(test())


def test_cancel_on_disconnect_with_outer_cancellation_raises_cancelled_error() -> None:
    async def work() -> None:
        with cancel_on_disconnect(acquire_permit()):
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()

    async def test() -> None:
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(test())


def test_cancel_on_disconnect_propagates_errors() -> None:
    async def test() -> None:
        with pytest.raises(KeyError), cancel_on_disconnect(acquire_permit()):
            raise KeyError

    run(test())
