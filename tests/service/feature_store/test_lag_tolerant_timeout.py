"""The timeout does not count delays of the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from service.feature_store.lag_tolerant_timeout import MAX_EXTENSIONS, LagTolerantTimeout

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def echo_with_delay(count: int, delay: float) -> bytes:
    """Send messages to an echo server one after the other while the event loop is blocked; return the responses."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while message := await reader.read(4):
            writer.write(message)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    responses = b""
    try:
        async with LagTolerantTimeout(0.1):
            asyncio.get_running_loop().call_soon(time.sleep, delay)
            for _ in range(count):
                writer.write(b"here")
                responses += await reader.readexactly(4)
    finally:
        writer.close()
        server.close()
    return responses


@pytest.mark.parametrize("loop", LOOPS)
def test_timeout_extends_while_the_event_loop_is_delayed(loop: type) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(echo_with_delay(5, delay=0.4)) == b"here" * 5


@pytest.mark.parametrize("loop", LOOPS)
def test_timeout_expires_without_an_answer(loop: type) -> None:
    async def wait() -> None:
        async with LagTolerantTimeout(0.02):
            await asyncio.sleep(60)

    with asyncio.Runner(loop_factory=loop) as runner, pytest.raises(TimeoutError):
        runner.run(wait())


def test_timeout_with_a_permanently_delayed_loop_expires_after_the_extensions() -> None:
    iterations = 0

    async def wait() -> None:
        def block() -> None:
            nonlocal iterations
            iterations += 1
            time.sleep(0.03)
            loop.call_soon(block)

        loop = asyncio.get_running_loop()
        loop.call_soon(block)
        async with LagTolerantTimeout(0.02):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    assert iterations <= 3 * (MAX_EXTENSIONS + 2)


def test_timeout_propagates_cancellation() -> None:
    async def cancelled() -> None:
        async def wait() -> None:
            async with LagTolerantTimeout(0.5):
                await asyncio.sleep(60)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
