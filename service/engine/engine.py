"""The engine behind the API: encodes a request, waits for its scores, puts its candidates in order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ranking.halves import Halves
from service.engine.batching import Batcher, DeadlinePassedError
from service.engine.candidates import Asked
from service.engine.ranking import Ranked, order, prepare
from service.engine.runtimes import Runtime
from service.engine.runtimes.base import Scores
from service.problems import Problem
from service.repository import Served
from service.stages import Stages

Key = tuple[Runtime, tuple[str, ...]]
"""What runs and the tasks that it scores, sorted: requests that agree in both share batches."""


@dataclass(frozen=True)
class Work:
    """Candidates of one request, or a part of them, and the clock of its stages."""

    halves: Halves
    stages: Stages

    def slice(self, start: int, stop: int) -> Self:
        """Candidates from ``start`` to ``stop``."""
        return type(self)(self.halves.slice(start, stop), self.stages)


class Engine:
    """One per process; all models share its inference thread, so that requests queue for the cores, not fight for them.

    Args:
        max_batch_rows: candidates that are scored at a time.
        default_deadline_ms: of requests that name none; None: they wait for as long as it takes.
        max_deadline_ms: the latest deadline, also of those; None: any.
    """

    def __init__(
        self, max_batch_rows: int, default_deadline_ms: float | None = None, max_deadline_ms: float | None = None
    ) -> None:
        self._batcher: Batcher[Key, Work] = Batcher(_scores, max_batch_rows)
        self._default_ms = math.inf if default_deadline_ms is None else default_deadline_ms
        self._most_ms = math.inf if max_deadline_ms is None else max_deadline_ms

    async def rank(self, served: Served, asked: Asked, stages: Stages) -> Ranked:
        """Ranks a request; if it is cancelled before its turn, it is not scored.

        Args:
            served: what scores.
            asked: what is ranked, and how.
            stages: of the request; its deadline counts from its arrival.

        Raises:
            Problem: 504 if the deadline has passed before scoring starts; 422 as ``ranking.prepare``.
            ScoringError: the runtime failed.
        """
        deadline_ms = min(asked.options.deadline_ms or self._default_ms, self._most_ms)
        deadline = stages.arrived + deadline_ms / 1000
        if deadline < time.monotonic():
            raise _late(deadline_ms, stages)
        prepared = prepare(served.ranker, served.encoder, asked)
        stages.end("look-up")
        if not len(prepared.ids):
            return order(prepared, np.empty((0, len(prepared.tasks)), np.float32))
        asked_for = [task.name for task in prepared.tasks]
        tasks = tuple(sorted(asked_for))
        try:
            work = Work(prepared.halves, stages)
            scores = await self._batcher.submit((served.runtime, tasks), work, len(prepared.ids), deadline)
        except DeadlinePassedError:
            raise _late(deadline_ms, stages) from None
        return order(prepared, scores[:, [tasks.index(task) for task in asked_for]])

    def close(self) -> None:
        """Finishes what is queued."""
        self._batcher.close()


def _late(deadline_ms: float, stages: Stages) -> Problem:
    waited = (time.monotonic() - stages.arrived) * 1000
    return Problem(504, f"deadline_ms = {deadline_ms:g} passed before scoring started ({waited:.1f} ms)")


def _scores(key: Key, batch: Sequence[Work]) -> Scores:
    runtime, tasks = key
    for work in batch:
        work.stages.end("queue")
    scores = runtime.scores(Halves.concat([work.halves for work in batch]), tasks)
    for work in batch:
        work.stages.end("forward")
    return scores
