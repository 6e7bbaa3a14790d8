"""Batches without a timer: one thread scores what waits, and what arrives meanwhile is the next batch."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from service.engine.errors import DeadlineExceededError, ScoringError
from service.engine.scheduler import BatchSlice, K, QueueEntry, Scheduler, W

R = TypeVar("R")
Reply = tuple[asyncio.Future[Any], Any]
"""Where an answer or an error goes."""


class Batcher(Generic[K, W, R]):
    """Gathers the rows of concurrent requests into batches and scores them on a thread of its own.

    Batches grow with the load: requests that meet an idle thread are scored at once, those together that the event loop
    has read at one go.

    Args:
        score: key, works → a result or an error for each; only called from the thread.
        max_rows: of one batch; larger requests are split.
    """

    def __init__(self, score: Callable[[K, Sequence[W]], Sequence[R | Exception]], max_rows: int) -> None:
        self._score = score
        self._queue: Scheduler[K, W] = Scheduler(max_rows)
        self._changed = threading.Condition()  # guards the queue and _closed
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    async def submit(self, key: K, work: W, rows: int, deadline: float = math.inf) -> list[R]:
        """Results when its turn has come; who is cancelled leaves the queue.

        Args:
            key: only requests of the same key share a batch.
            work: what is scored.
            rows: how many rows that is, at least 1.
            deadline: ``time.monotonic()`` after which scoring must not start.

        Returns:
            Of the work's parts, in order; one unless it was split.

        Raises:
            DeadlineExceededError: it passed.
            ScoringError: ``score`` failed on a batch with some of these rows.
            Exception: what ``score`` gave as this work's error.
            RuntimeError: the batcher is closed.
        """
        loop = asyncio.get_running_loop()
        entry = QueueEntry(key, work, rows, deadline, loop.create_future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._queue.add(entry)
        loop.call_soon(self._wake)  # once those have joined that were read together with this one
        try:
            found: list[R] = await entry.reply
            return found
        except asyncio.CancelledError:
            with self._changed:
                self._queue.remove(entry)
            raise

    def close(self) -> None:
        """Finishes what is queued and refuses what comes later."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while self._run_once():
            pass

    def _run_once(self) -> bool:
        """Waits for work and does a batch of it; False if the batcher is closed and nothing is left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return False
            parts, late = self._queue.take(time.monotonic())
        replies: list[Reply] = [(entry.reply, DeadlineExceededError()) for entry in late]
        _deliver(replies + (self._scored(parts) if parts else []))
        return True

    def _scored(self, parts: Sequence[BatchSlice[K, W]]) -> list[Reply]:
        """Replies to the requests that this batch completes or fails."""
        try:
            results = self._score(parts[0].entry.key, [part.work for part in parts])
            pairs = list(zip(parts, results, strict=True))
        except Exception as error:
            pairs = [(part, _failed(error)) for part in parts]
        replies: list[Reply] = []
        for part, result in pairs:
            entry = part.entry
            if isinstance(result, Exception):
                with self._changed:
                    self._queue.remove(entry)
                replies.append((entry.reply, result))
                continue
            entry.results.append(result)
            if part.stop == entry.rows:
                replies.append((entry.reply, entry.results))
        return replies


def _failed(cause: Exception) -> ScoringError:
    """An error for each request: one exception raised in several tasks would gather the tracebacks of all."""
    error = ScoringError(str(cause))
    error.__cause__ = cause
    return error


def _deliver(replies: Sequence[Reply]) -> None:
    """Hands all replies over at once, because every wake-up of an event loop costs tens of microseconds."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_resolve, some)


def _resolve(replies: Sequence[Reply]) -> None:
    for future, result in replies:
        if future.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
