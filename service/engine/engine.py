"""The engine behind the API: checks a request, waits for its scores, puts its candidates in order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from ranking.errors import InvalidInputError
from service.engine.batcher import Batcher
from service.engine.errors import DeadlineExceededError
from service.engine.feature_store import FeatureStore
from service.engine.model import LoadedModel
from service.engine.request import EMPTY
from service.engine.response import PreparedRequest, RankResult, prepare, sort_candidates
from service.engine.scoring import BatchKey, QueuedRequest, RequestScores, score
from service.engine.validation import ParsedRequest, to_invalid_request
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer


class Engine:
    """One per process; all models share its inference thread, so that requests queue for the cores, not fight for them.

    Args:
        max_batch_rows: candidates that are scored at a time.
        metrics: where they are counted.
        feature_store: source of features that requests leave out; None: only the bundle's tables.
        default_deadline_ms: of requests that name none; None: they wait for as long as it takes.
        max_deadline_ms: the latest deadline, also of those; None: any.
    """

    def __init__(
        self,
        max_batch_rows: int,
        metrics: Metrics,
        feature_store: FeatureStore | None = None,
        default_deadline_ms: float | None = None,
        max_deadline_ms: float | None = None,
    ) -> None:
        self._metrics, self._feature_store = metrics, feature_store
        self._batcher: Batcher[BatchKey, QueuedRequest, RequestScores] = Batcher(self._score, max_batch_rows)
        self._default_ms = math.inf if default_deadline_ms is None else default_deadline_ms
        self._most_ms = math.inf if max_deadline_ms is None else max_deadline_ms
        self._ranking = 0

    @property
    def busy(self) -> bool:
        """Whether a request is being ranked."""
        return self._ranking > 0

    async def rank(
        self, served: LoadedModel, asked: ParsedRequest, stages: StageTimer, *, counted: bool = True
    ) -> RankResult:
        """Ranks a request; if it is cancelled before its turn, it is not scored.

        Args:
            served: what scores.
            asked: what is ranked, and how.
            stages: of the request; its deadline counts from its arrival.
            counted: whether it is part of what metrics say of scoring.

        Raises:
            DeadlineExceededError: the deadline passed before scoring started.
            InvalidRequestError: a field of the request is invalid.
            ScoringError: the runtime failed.
        """
        self._ranking += 1
        try:
            return await self._rank(served, asked, stages, counted)
        finally:
            self._ranking -= 1

    async def _rank(self, served: LoadedModel, asked: ParsedRequest, stages: StageTimer, counted: bool) -> RankResult:
        deadline_ms = min(asked.options.deadline_ms or self._default_ms, self._most_ms)
        _require_time(deadline_ms, stages)
        stored = EMPTY
        if self._feature_store is not None:
            stages.end("parse")
            stored = await self._feature_store.lookup(served, asked)
            stages.end("store")
            _require_time(deadline_ms, stages)
        prepared = prepare(served.ranker, served.encoder, asked, stored)
        stages.end("parse")
        try:
            return await self._ranked(served, prepared, deadline_ms, stages, counted)
        except InvalidInputError as error:
            raise to_invalid_request(error, served.ranker.schema) from None

    async def _ranked(
        self, served: LoadedModel, prepared: PreparedRequest, deadline_ms: float, stages: StageTimer, counted: bool
    ) -> RankResult:
        request, asked_for = prepared.request, [task.name for task in prepared.tasks]
        if not len(request):
            (missing,) = served.encoder.missing(served.encoder(request), request.counts)
            return sort_candidates(prepared, np.empty((0, len(asked_for)), np.float32), missing)
        tasks = tuple(sorted(asked_for))
        deadline = stages.arrived + deadline_ms / 1000
        self._metrics.queue_rows.inc(len(request))
        try:
            parts = await self._batcher.submit(
                (served, tasks), QueuedRequest(request, stages, counted), len(request), deadline
            )
        except DeadlineExceededError:
            raise _late(deadline_ms, stages) from None
        finally:
            self._metrics.queue_rows.dec(len(request))
        scored = RequestScores.concat(parts)
        return sort_candidates(prepared, scored.scores[:, [tasks.index(task) for task in asked_for]], scored.missing)

    def close(self) -> None:
        """Finishes what is queued."""
        self._batcher.close()

    def _score(self, key: BatchKey, batch: Sequence[QueuedRequest]) -> list[RequestScores | Exception]:
        found = score(key, batch)
        right = [
            each for each, work in zip(found, batch, strict=True) if isinstance(each, RequestScores) and work.counted
        ]
        if right:
            scores = np.concatenate([each.scores for each in right])
            model, tasks = key
            missing = sum(each.missing.count for each in right)
            self._metrics.record_batch(model.name, model.version, tasks, scores, missing)
        return found


def _require_time(deadline_ms: float, stages: StageTimer) -> None:
    if stages.arrived + deadline_ms / 1000 < time.monotonic():
        raise _late(deadline_ms, stages)


def _late(deadline_ms: float, stages: StageTimer) -> DeadlineExceededError:
    waited = (time.monotonic() - stages.arrived) * 1000
    return DeadlineExceededError(f"deadline_ms = {deadline_ms:g} passed before scoring started ({waited:.1f} ms)")
