"""Clients that go away before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect


@asynccontextmanager
async def while_connected(http: Request) -> AsyncIterator[None]:
    """Cancels what runs inside once the client is gone; the request's body must have been read.

    Raises:
        ClientDisconnect: it is gone.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await http.receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone or task.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        watching.cancel()
