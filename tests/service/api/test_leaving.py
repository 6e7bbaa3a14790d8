"""Clients that go away, and all the other ways for work to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from service.api.leaving import while_connected

SECONDS = 30.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs the test; nothing that it started may be left over."""

    async def alone() -> None:
        await asyncio.wait_for(test, SECONDS)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(alone())


class Client:
    """The other end of a request whose body has been read."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.request = Request({"type": "http"}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def test_work_that_ends_first_is_not_disturbed() -> None:
    async def test() -> None:
        async with while_connected(Client().request):
            await asyncio.sleep(0)

    run(test())


async def leave(client: Client, ended: asyncio.Future[None]) -> None:
    client.gone.set()
    await ended


def test_work_is_cancelled_when_the_client_goes_away() -> None:
    async def test() -> None:
        client, ended = Client(), asyncio.get_running_loop().create_future()
        with pytest.raises(ClientDisconnect):
            async with while_connected(client.request):
                await leave(client, ended)
        assert ended.cancelled()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling(), "the task itself goes on"

    run(test())


def test_who_is_cancelled_while_the_client_goes_away_is_cancelled() -> None:
    async def work() -> None:
        async with while_connected(client.request):
            await asyncio.Event().wait()

    client = Client()

    async def test() -> None:
        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        client.gone.set()
        with pytest.raises(asyncio.CancelledError):
            await working

    run(test())


def test_who_is_cancelled_from_outside_is_cancelled() -> None:
    async def work() -> None:
        async with while_connected(Client().request):
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
        with pytest.raises(KeyError):
            async with while_connected(Client().request):
                raise KeyError

    run(test())
