"""The engine behind the API: encodes a request, waits for its scores, puts its candidates in order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from ranking.halves import Halves
from service.engine.batching import Batcher, DeadlinePassedError
from service.engine.candidates import Asked
from service.engine.ranking import Ranked, order, prepare
from service.engine.runtimes import Runtime
from service.engine.runtimes.base import Scores
from service.problems import Problem
from service.repository import Served

Key = tuple[Runtime, tuple[str, ...]]
"""What runs and the tasks that it scores: requests that agree in both share batches."""


class Engine:
    """One per process; all models share its inference thread, so that requests queue for the cores, not fight for them.

    Args:
        max_batch_rows: candidates that are scored at a time.
    """

    def __init__(self, max_batch_rows: int) -> None:
        self._batcher: Batcher[Key, Halves] = Batcher(_scores, max_batch_rows)

    async def rank(self, served: Served, asked: Asked, arrived: float) -> Ranked:
        """Ranks a request; if it is cancelled before its turn, it is not scored.

        Args:
            served: what scores.
            asked: what is ranked, and how.
            arrived: ``time.monotonic()`` of the request's arrival, from which its deadline counts.

        Raises:
            Problem: 504 if the deadline has passed before scoring starts; 422 as ``ranking.prepare``.
            ScoringError: the runtime failed.
        """
        prepared = prepare(served.ranker, served.encoder, asked)
        if not len(prepared.ids):
            return order(prepared, np.empty((0, len(prepared.tasks)), np.float32))
        tasks = tuple(task.name for task in prepared.tasks)
        deadline = math.inf if asked.options.deadline_ms is None else arrived + asked.options.deadline_ms / 1000
        try:
            scores = await self._batcher.submit((served.runtime, tasks), prepared.halves, len(prepared.ids), deadline)
        except DeadlinePassedError:
            waited = (time.monotonic() - arrived) * 1000
            raise Problem(
                504, f"deadline_ms = {asked.options.deadline_ms:g} passed before scoring started ({waited:.1f} ms)"
            ) from None
        return order(prepared, scores)

    def close(self) -> None:
        """Finishes what is queued."""
        self._batcher.close()


def _scores(key: Key, batch: Sequence[Halves]) -> Scores:
    runtime, tasks = key
    return runtime.scores(Halves.concat(list(batch)), tasks)
