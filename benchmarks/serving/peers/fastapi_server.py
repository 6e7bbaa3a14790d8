"""Serve a function that answers requests with FastAPI and uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks.serving.peers.protocol import HEALTH, HOST, PATH

Answer = Callable[[bytes], Awaitable[bytes]]
"""Returns the response body of a request body."""


@asynccontextmanager
async def no_lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Start and stop nothing with the server."""
    yield


def serve(
    answer: Answer, port: int, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] = no_lifespan
) -> None:
    """Serve until the process receives a signal."""
    app = FastAPI(lifespan=lifespan)

    @app.post(PATH)
    async def rank(request: Request) -> Response:
        return Response(await answer(await request.body()), media_type="application/json")

    @app.get(HEALTH)
    async def health() -> dict[str, str]:
        return {}

    uvicorn.run(app, host=HOST, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)
