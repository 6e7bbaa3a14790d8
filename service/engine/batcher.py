"""Continuous batching: the next batch accumulates while one is scored, on a thread of its own if it takes long."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from service.engine.errors import DeadlineExceededError, ScoringError
from service.engine.request import FeatureRequest
from service.engine.scheduler import BatchKey, QueueEntry, Scheduler
from service.engine.scoring import RequestScores
from service.telemetry.stage_timer import StageTimer

Score: TypeAlias = Callable[[BatchKey, Sequence[QueueEntry]], Sequence[RequestScores | Exception]]
"""Scores a batch; returns the scores of each entry's candidates in it, or the error in their features."""
Reply: TypeAlias = tuple[asyncio.Future[Any], Any]
"""A future, and the results or the error that it receives."""

SHORT_SECONDS = 0.001
"""CPU time of scoring a request up to which it is not handed to the thread, which costs about 0.1 ms both ways."""
MAX_ESTIMATES = 1_000
"""Number of batch keys whose duration is remembered."""


class Batcher:
    """Gathers the rows of concurrent requests into batches and scores them one at a time.

    There is no batching delay: an idle batcher starts at once, with all requests that the event loop read in the same
    iteration. Under load, batches grow up to ``max_rows``. The batcher's thread scores them while the event loop reads
    further requests. The event loop itself scores a request that is alone, if scoring is expected to take at most
    ``SHORT_SECONDS``: a batch of its key with as many rows recently did. Several requests always go to the thread,
    because more of them arrive while it scores, and larger batches cost less per request.

    Args:
        score: function that scores a batch, called by one thread at a time.
        max_rows: maximum number of rows per batch; larger requests are split.
    """

    def __init__(self, score: Score, max_rows: int) -> None:
        self._score = score
        self._scheduler = Scheduler(max_rows)
        self._changed = threading.Condition()  # guards the scheduler, _closed and the start of a batch
        self._closed = False
        self._scoring_since: float | None = None  # None between batches
        self._short_rows: dict[int, int] = {}  # hash of a key → rows that recently took at most SHORT_SECONDS
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    @property
    def scoring_seconds(self) -> float:
        """Seconds that the current batch has been in progress, 0 between batches."""
        since = self._scoring_since
        return 0.0 if since is None else time.monotonic() - since

    async def submit(
        self,
        key: BatchKey,
        features: FeatureRequest,
        timer: StageTimer,
        deadline: float = math.inf,
        *,
        counted: bool = True,
    ) -> list[RequestScores]:
        """Queue a request and wait for its scores; cancellation removes it from the queue.

        Args:
            key: batch key; only requests with the same key share a batch.
            features: features of at least one candidate.
            timer: stage timer of the request.
            deadline: ``time.monotonic()`` after which scoring must not start.
            counted: whether the scoring metrics count the request.

        Returns:
            Scores of the request in each of its batches, in order; one unless it was split.

        Raises:
            DeadlineExceededError: the deadline passed before scoring started.
            ScoringError: ``score`` failed on a batch with rows of this request.
            Exception: the error that ``score`` returned for this request.
            RuntimeError: the batcher is closed.
        """
        loop = asyncio.get_running_loop()
        entry = QueueEntry(key, features, timer, deadline, loop.create_future(), counted)
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._scheduler.add(entry)
        loop.call_soon(self._start)  # after all requests of this event loop iteration are queued
        try:
            results: list[RequestScores] = await entry.reply
            return results
        except asyncio.CancelledError:
            with self._changed:
                self._scheduler.remove(entry)
            raise

    def close(self) -> None:
        """Score the queued requests, then stop the thread; ``submit`` fails from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _start(self) -> None:
        """Score the only request here if it is short and the thread is idle; else wake the thread."""
        with self._changed:
            if not self._scheduler or self._scoring_since is not None:
                return  # the queue was taken as part of an earlier batch, or the thread continues with it
            alone = self._scheduler.only_entry
            if alone is None or alone.rows > self._short_rows.get(hash(alone.key), 0):
                self._changed.notify()
                return
            batch = self._take()
        loop = asyncio.get_running_loop()
        self._score_taken(*batch, loop)
        if self._scheduler:
            loop.call_soon(self._start)

    def _run(self) -> None:
        """Score batches until the batcher is closed and the queue is empty."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: (self._scheduler or self._closed) and self._scoring_since is None)
                if not self._scheduler:
                    return
                batch = self._take()
            self._score_taken(*batch)
            del batch  # do not keep its models alive while waiting

    def _take(self) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """Take the next batch from the queue, and mark it as being scored."""
        self._scoring_since = now = time.monotonic()
        return self._scheduler.take(now)

    def _score_taken(
        self,
        batch: Sequence[QueueEntry],
        expired: Sequence[QueueEntry],
        running_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Score a batch and deliver its replies.

        Args:
            batch: entries of the batch.
            expired: entries whose deadline passed.
            running_loop: event loop of the calling thread, if it has one.
        """
        reason = "the deadline passed before scoring started"
        replies: list[Reply] = [(entry.reply, DeadlineExceededError(reason)) for entry in expired]
        if batch:
            begin = time.thread_time()
            replies += self._score_batch(batch)
            self._remember(batch, time.thread_time() - begin)
        with self._changed:
            self._scoring_since = None  # before the replies: a client's next request finds the batcher idle
            if self._closed:
                self._changed.notify()
        _deliver(replies, running_loop)

    def _remember(self, batch: Sequence[QueueEntry], seconds: float) -> None:
        """Adjust the number of rows that are scored within ``SHORT_SECONDS``."""
        key, rows = hash(batch[0].key), sum(entry.batch_rows for entry in batch)
        known = self._short_rows.get(key, 0)
        if len(self._short_rows) >= MAX_ESTIMATES:
            self._short_rows.clear()
        self._short_rows[key] = max(known, rows) if seconds <= SHORT_SECONDS else min(known, rows - 1)

    def _score_batch(self, batch: Sequence[QueueEntry]) -> list[Reply]:
        """Score a batch and return the replies to the requests that it completes or fails."""
        try:
            results = self._score(batch[0].key, batch)
            pairs = list(zip(batch, results, strict=True))
        except Exception as error:
            pairs = [(entry, _scoring_error(error)) for entry in batch]
        replies: list[Reply] = []
        for entry, result in pairs:
            if isinstance(result, Exception):
                with self._changed:
                    self._scheduler.remove(entry)
                replies.append((entry.reply, result))
                continue
            entry.results.append(result)
            if entry.stop == entry.rows:
                replies.append((entry.reply, entry.results))
        return replies


def _scoring_error(cause: Exception) -> ScoringError:
    """Return a new error per request: one exception raised in several tasks would collect the tracebacks of all."""
    error = ScoringError(str(cause))
    error.__cause__ = cause
    return error


def _deliver(replies: Sequence[Reply], running_loop: asyncio.AbstractEventLoop | None) -> None:
    """Deliver all replies with one wake-up per event loop of another thread; each costs tens of microseconds."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    if running_loop is not None:
        _resolve(by_loop.pop(running_loop, []))
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
