"""Continuous batching: one thread scores the queued requests while the next batch accumulates."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from service.engine.errors import DeadlineExceededError, ScoringError
from service.engine.scheduler import BatchSlice, KeyT, QueueEntry, Scheduler, WorkT

ResultT = TypeVar("ResultT")
Reply = tuple[asyncio.Future[Any], Any]
"""A future, and the results or the error that it receives."""


class Batcher(Generic[KeyT, WorkT, ResultT]):
    """Gathers the rows of concurrent requests into batches and scores them on its own thread.

    There is no batching delay: an idle thread starts at once, with all requests that the event loop read in the same
    iteration. Under load, batches grow up to ``max_rows``.

    Args:
        score: function that scores a batch, called only from the batcher's thread. It takes the key and the works of
            the batch and returns a result or an error for each work.
        max_rows: maximum number of rows per batch; larger requests are split.
    """

    def __init__(self, score: Callable[[KeyT, Sequence[WorkT]], Sequence[ResultT | Exception]], max_rows: int) -> None:
        self._score = score
        self._scheduler: Scheduler[KeyT, WorkT] = Scheduler(max_rows)
        self._changed = threading.Condition()  # guards the scheduler and _closed
        self._closed = False
        self._scoring_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    @property
    def scoring_seconds(self) -> float:
        """Seconds that the current batch has been in progress, 0 between batches."""
        since = self._scoring_since
        return 0.0 if since is None else time.monotonic() - since

    async def submit(self, key: KeyT, work: WorkT, rows: int, deadline: float = math.inf) -> list[ResultT]:
        """Queue work and wait for its results; cancellation removes it from the queue.

        Args:
            key: batch key; only requests with the same key share a batch.
            work: rows to score.
            rows: number of rows, at least 1.
            deadline: ``time.monotonic()`` after which scoring must not start.

        Returns:
            Results of the slices of the work, in order; one unless the work was split.

        Raises:
            DeadlineExceededError: the deadline passed before scoring started.
            ScoringError: ``score`` failed on a batch with rows of this work.
            Exception: the error that ``score`` returned for this work.
            RuntimeError: the batcher is closed.
        """
        loop = asyncio.get_running_loop()
        entry = QueueEntry(key, work, rows, deadline, loop.create_future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._scheduler.add(entry)
        loop.call_soon(self._wake)  # after all requests of this event loop iteration are queued
        try:
            results: list[ResultT] = await entry.reply
            return results
        except asyncio.CancelledError:
            with self._changed:
                self._scheduler.remove(entry)
            raise

    def close(self) -> None:
        """Score the queued work, then stop the thread; ``submit`` fails from now on."""
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
        """Wait for work and score one batch; return False if the batcher is closed and the queue is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._scheduler or self._closed)
            if not self._scheduler:
                return False
            slices, expired = self._scheduler.take(now := time.monotonic())
        self._scoring_since = now
        reason = "the deadline passed before scoring started"
        replies: list[Reply] = [(entry.reply, DeadlineExceededError(reason)) for entry in expired]
        _deliver(replies + (self._score_batch(slices) if slices else []))
        self._scoring_since = None
        return True

    def _score_batch(self, slices: Sequence[BatchSlice[KeyT, WorkT]]) -> list[Reply]:
        """Score a batch and return the replies to the requests that it completes or fails."""
        try:
            results = self._score(slices[0].entry.key, [part.work for part in slices])
            pairs = list(zip(slices, results, strict=True))
        except Exception as error:
            pairs = [(part, _scoring_error(error)) for part in slices]
        replies: list[Reply] = []
        for part, result in pairs:
            entry = part.entry
            if isinstance(result, Exception):
                with self._changed:
                    self._scheduler.remove(entry)
                replies.append((entry.reply, result))
                continue
            entry.results.append(result)
            if part.stop == entry.rows:
                replies.append((entry.reply, entry.results))
        return replies


def _scoring_error(cause: Exception) -> ScoringError:
    """Return a new error per request: one exception raised in several tasks would collect the tracebacks of all."""
    error = ScoringError(str(cause))
    error.__cause__ = cause
    return error


def _deliver(replies: Sequence[Reply]) -> None:
    """Deliver all replies with one wake-up per event loop; each wake-up costs tens of microseconds."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    for loop, loop_replies in by_loop.items():
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits for the replies
            loop.call_soon_threadsafe(_resolve, loop_replies)


def _resolve(replies: Sequence[Reply]) -> None:
    for future, result in replies:
        if future.done():  # cancelled in the meantime
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
