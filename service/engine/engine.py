"""The engine behind the API: checks a request, waits for its scores, puts its candidates in order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from ranking.errors import InvalidInputError
from service.engine.batching import Batcher, DeadlinePassedError
from service.engine.candidates import Asked, explained
from service.engine.ranking import Prepared, Ranked, order, prepare
from service.engine.scoring import Key, Scored, Work, score
from service.problems import Problem
from service.store.base import NOTHING
from service.store.lookup import Lookup
from service.telemetry.metrics import Metrics
from service.telemetry.stages import Stages
from service.versions.served import Served


class Engine:
    """One per process; all models share its inference thread, so that requests queue for the cores, not fight for them.

    Args:
        max_batch_rows: candidates that are scored at a time.
        metrics: where they are counted.
        lookup: into a store for what requests leave out, if there is one.
        default_deadline_ms: of requests that name none; None: they wait for as long as it takes.
        max_deadline_ms: the latest deadline, also of those; None: any.
    """

    def __init__(
        self,
        max_batch_rows: int,
        metrics: Metrics,
        lookup: Lookup | None = None,
        default_deadline_ms: float | None = None,
        max_deadline_ms: float | None = None,
    ) -> None:
        self._metrics, self._lookup = metrics, lookup
        self._batcher: Batcher[Key, Work, Scored] = Batcher(self._score, max_batch_rows)
        self._default_ms = math.inf if default_deadline_ms is None else default_deadline_ms
        self._most_ms = math.inf if max_deadline_ms is None else max_deadline_ms
        self._ranking = 0

    @property
    def busy(self) -> bool:
        """Whether a request is being ranked."""
        return self._ranking > 0

    async def rank(self, served: Served, asked: Asked, stages: Stages, *, counted: bool = True) -> Ranked:
        """Ranks a request; if it is cancelled before its turn, it is not scored.

        Args:
            served: what scores.
            asked: what is ranked, and how.
            stages: of the request; its deadline counts from its arrival.
            counted: whether it is part of what metrics say of scoring.

        Raises:
            Problem: 504 if the deadline has passed before scoring starts; 422 naming the field that is wrong.
            ScoringError: the runtime failed.
        """
        self._ranking += 1
        try:
            return await self._rank(served, asked, stages, counted)
        finally:
            self._ranking -= 1

    async def _rank(self, served: Served, asked: Asked, stages: Stages, counted: bool) -> Ranked:
        deadline_ms = min(asked.options.deadline_ms or self._default_ms, self._most_ms)
        _require_time(deadline_ms, stages)
        stored = NOTHING
        if self._lookup is not None:
            stages.end("parse")
            stored = await self._lookup(served, asked)
            stages.end("store")
            _require_time(deadline_ms, stages)
        prepared = prepare(served.ranker, served.encoder, asked, stored)
        stages.end("parse")
        try:
            return await self._ranked(served, prepared, deadline_ms, stages, counted)
        except InvalidInputError as error:
            raise explained(error, served.ranker.schema) from None

    async def _ranked(
        self, served: Served, prepared: Prepared, deadline_ms: float, stages: Stages, counted: bool
    ) -> Ranked:
        request, asked_for = prepared.request, [task.name for task in prepared.tasks]
        if not len(request):
            (missing,) = served.encoder.missing(served.encoder(request), request.counts)
            return order(prepared, np.empty((0, len(asked_for)), np.float32), missing)
        tasks = tuple(sorted(asked_for))
        deadline = stages.arrived + deadline_ms / 1000
        self._metrics.queue_rows.inc(len(request))
        try:
            parts = await self._batcher.submit((served, tasks), Work(request, stages, counted), len(request), deadline)
        except DeadlinePassedError:
            raise _late(deadline_ms, stages) from None
        finally:
            self._metrics.queue_rows.dec(len(request))
        scored = Scored.concat(parts)
        return order(prepared, scored.scores[:, [tasks.index(task) for task in asked_for]], scored.missing)

    def close(self) -> None:
        """Finishes what is queued."""
        self._batcher.close()

    def _score(self, key: Key, batch: Sequence[Work]) -> list[Scored | Exception]:
        found = score(key, batch)
        right = [each for each, work in zip(found, batch, strict=True) if isinstance(each, Scored) and work.counted]
        if right:
            scores = np.concatenate([each.scores for each in right])
            self._metrics.scored(*key, scores, sum(each.missing.count for each in right))
        return found


def _require_time(deadline_ms: float, stages: Stages) -> None:
    if stages.arrived + deadline_ms / 1000 < time.monotonic():
        raise _late(deadline_ms, stages)


def _late(deadline_ms: float, stages: Stages) -> Problem:
    waited = (time.monotonic() - stages.arrived) * 1000
    return Problem(504, f"deadline_ms = {deadline_ms:g} passed before scoring started ({waited:.1f} ms)")
