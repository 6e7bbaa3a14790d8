"""Batches without a timer: one thread scores what waits, and what arrives meanwhile is the next batch."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic

import numpy as np

from service.engine.fair_queue import Entry, FairQueue, K, Part, Scores, W

Reply = tuple[asyncio.Future[Scores], Scores | Exception]


class DeadlinePassedError(Exception):
    """The deadline passed before scoring started."""


class ScoringError(Exception):
    """The batch could not be scored; the cause says why."""


class Batcher(Generic[K, W]):
    """Gathers the rows of concurrent requests into batches and scores them on a thread of its own.

    Batches grow with the load: a request that meets an idle thread is scored at once and alone.

    Args:
        score: key, rows → scores [all rows, tasks], the rows one after the other; only called from the thread.
        max_rows: of one batch; larger requests are split.
    """

    def __init__(self, score: Callable[[K, Sequence[W]], Scores], max_rows: int) -> None:
        self._score = score
        self._queue: FairQueue[K, W] = FairQueue(max_rows)
        self._changed = threading.Condition()  # guards the queue and _closed
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._thread.start()

    async def submit(self, key: K, work: W, rows: int, deadline: float = math.inf) -> Scores:
        """Scores when its turn comes; who is cancelled leaves the queue.

        Args:
            key: only requests of the same key share a batch.
            work: what is scored.
            rows: how many rows that is, at least 1.
            deadline: ``time.monotonic()`` after which scoring must not start.

        Returns:
            Scores [rows, tasks].

        Raises:
            DeadlinePassedError: it passed.
            ScoringError: ``score`` failed on a batch with some of these rows.
            RuntimeError: the batcher is closed.
        """
        entry = Entry(key, work, rows, deadline, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._queue.add(entry)
            self._changed.notify()
        try:
            return await entry.reply
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

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Waits for work and does a batch of it; False if the batcher is closed and nothing is left to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return False
            parts, late = self._queue.take(time.monotonic())
        replies: list[Reply] = [(entry.reply, DeadlinePassedError()) for entry in late]
        _answer(replies + (self._scored(parts) if parts else []))
        return True

    def _scored(self, parts: Sequence[Part[K, W]]) -> list[Reply]:
        """Replies to the requests that this batch completes or fails."""
        try:
            scores = self._score(parts[0].entry.key, [part.work for part in parts])
            if len(scores) != sum(part.rows for part in parts):
                raise ValueError(f"{len(scores)} scores for {sum(part.rows for part in parts)} rows")
        except Exception as error:
            with self._changed:
                for part in parts:
                    self._queue.remove(part.entry)
            return [(part.entry.reply, _failed(error)) for part in parts]
        replies: list[Reply] = []
        start = 0
        for part in parts:
            entry = part.entry
            entry.scored.append(scores[start : start + part.rows])
            start += part.rows
            if part.stop == entry.rows:
                replies.append((entry.reply, np.concatenate(entry.scored) if part.start else entry.scored[0]))
        return replies


def _failed(cause: Exception) -> ScoringError:
    """An error for each request: one exception raised in several tasks would gather the tracebacks of all."""
    error = ScoringError(str(cause))
    error.__cause__ = cause
    return error


def _answer(replies: Sequence[Reply]) -> None:
    """Hands all replies over at once, because every wake-up of an event loop costs tens of microseconds."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0].get_loop(), []).append(reply)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_set, some)


def _set(replies: Sequence[Reply]) -> None:
    for future, result in replies:
        if future.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
