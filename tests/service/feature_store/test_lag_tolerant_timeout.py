"""A timeout that does not count the time in which this process was late itself."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from service.feature_store.lag_tolerant_timeout import EXTENSIONS, LagTolerantTimeout

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def asked_and_answered(times: int, late: float) -> bytes:
    """So many answers of an echo, one after the other, while the event loop does something else for so many seconds."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while word := await reader.read(4):
            writer.write(word)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    answers = b""
    try:
        async with LagTolerantTimeout(0.1):
            asyncio.get_running_loop().call_soon(time.sleep, late)
            for _ in range(times):
                writer.write(b"here")
                answers += await reader.readexactly(4)
    finally:
        writer.close()
        server.close()
    return answers


@pytest.mark.parametrize("loop", LOOPS)
def test_time_in_which_the_event_loop_was_late_does_not_count(loop: type) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(asked_and_answered(5, late=0.4)) == b"here" * 5


@pytest.mark.parametrize("loop", LOOPS)
def test_what_does_not_come_is_not_waited_for(loop: type) -> None:
    async def waits() -> None:
        async with LagTolerantTimeout(0.02):
            await asyncio.sleep(60)

    with asyncio.Runner(loop_factory=loop) as runner, pytest.raises(TimeoutError):
        runner.run(waits())


def test_a_loop_that_is_always_late_waits_for_nobody_for_ever() -> None:
    turns = 0

    async def waits() -> None:
        def late() -> None:
            nonlocal turns
            turns += 1
            time.sleep(0.03)
            loop.call_soon(late)

        loop = asyncio.get_running_loop()
        loop.call_soon(late)
        async with LagTolerantTimeout(0.02):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(waits())
    assert turns <= 3 * (EXTENSIONS + 2)


def test_who_is_cancelled_from_outside_is_cancelled() -> None:
    async def cancelled() -> None:
        async def waits() -> None:
            async with LagTolerantTimeout(0.5):
                await asyncio.sleep(60)

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
