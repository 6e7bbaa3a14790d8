"""Calls with a timeout, of functions that may hang."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

from ranking.artifacts.bounded_calls import BoundedCalls, TooManyCallsError
from tests.support.waiting import TIMEOUT_SECONDS


def fail() -> NoReturn:
    raise ValueError("reason")


def test_call_returns_the_result_or_raises_the_error() -> None:
    calls = BoundedCalls(10.0, 1)
    assert calls.call(lambda: 3) == 3
    with pytest.raises(ValueError, match="reason"):
        calls.call(fail)
    assert asyncio.run(calls.call_async(lambda: 3)) == 3
    with pytest.raises(ValueError, match="reason"):
        asyncio.run(calls.call_async(fail))


def test_call_that_hangs_times_out_and_keeps_its_permit_until_it_returns() -> None:
    released, other_threads = threading.Event(), threading.enumerate()
    calls = BoundedCalls(0.05, 2)
    with pytest.raises(TimeoutError):
        calls.call(released.wait)
    with pytest.raises(TimeoutError):
        asyncio.run(calls.call_async(released.wait))
    with pytest.raises(TooManyCallsError):
        calls.call(lambda: 3)
    with pytest.raises(TooManyCallsError):
        asyncio.run(calls.call_async(lambda: 3))
    threads = [
        thread for thread in threading.enumerate() if thread not in other_threads and thread.name == "repository"
    ]
    assert [thread.daemon for thread in threads] == [True, True]
    released.set()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert asyncio.run(calls.call_async(lambda: 3)) == 3


def test_event_loop_runs_while_a_call_waits() -> None:
    async def count() -> int:
        released = threading.Event()
        task = asyncio.create_task(BoundedCalls(30.0, 1).call_async(released.wait))
        ticks = 0
        while ticks < 5:
            await asyncio.sleep(0.001)
            ticks += 1
        released.set()
        assert await task
        return ticks

    assert asyncio.run(count()) == 5
