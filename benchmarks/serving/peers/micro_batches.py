"""FastAPI with the look-up and the backend of this repository, and batches from an asyncio queue.

Settings: ``size``, the maximum number of requests per batch; ``wait``, the maximum wait for a full batch in seconds;
``threads``, whether batches are scored in a thread instead of the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from benchmarks.serving.peers.fastapi_server import serve
from benchmarks.serving.peers.library import Library
from benchmarks.serving.peers.protocol import Arguments, Scorer, answers

Entry = tuple[bytes, asyncio.Future[bytes]]
"""Body of a request and its response."""


class MicroBatcher:
    """Answers requests in batches.

    Args:
        scorer: scorer of the batches.
        size: maximum number of requests per batch.
        wait: maximum wait for a full batch in seconds.
        threads: score batches in a thread.
    """

    def __init__(self, scorer: Scorer, size: int, wait: float, *, threads: bool) -> None:
        self._scorer, self._size, self._wait, self._threads = scorer, size, wait, threads
        self._queue: asyncio.Queue[Entry] = asyncio.Queue()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Score batches while the application runs."""
        task = asyncio.create_task(self._run())
        yield
        task.cancel()

    async def answer(self, data: bytes) -> bytes:
        """Return the response of a request."""
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((data, response))
        return await response

    async def _run(self) -> None:
        while True:
            batch = await self._next_batch()
            bodies = [data for data, _ in batch]
            try:
                if self._threads:
                    contents = await asyncio.to_thread(answers, self._scorer, bodies)
                else:
                    contents = answers(self._scorer, bodies)
            except Exception as error:
                for _, response in batch:
                    response.set_exception(error)
                continue
            for (_, response), data in zip(batch, contents, strict=True):
                if not response.done():
                    response.set_result(data)
            await asyncio.sleep(0)  # Writes these responses and reads new requests before the next batch.

    async def _next_batch(self) -> list[Entry]:
        batch = [await self._queue.get()]
        deadline = asyncio.get_running_loop().time() + self._wait
        while len(batch) < self._size:
            if not self._queue.empty():
                batch.append(self._queue.get_nowait())
                continue
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self._queue.get(), remaining))
            except TimeoutError:
                break
        return batch


if __name__ == "__main__":
    arguments = Arguments.from_command_line()
    batcher = MicroBatcher(Library(arguments.bundle), **arguments.settings)
    serve(batcher.answer, arguments.port, batcher.lifespan)
