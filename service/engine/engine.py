"""The ranking engine: completes and validates a request, scores it in a batch and sorts its candidates."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from ranking.errors import InvalidInputError
from service.engine.batcher import Batcher
from service.engine.errors import DeadlineExceededError
from service.engine.explainer import Explainer
from service.engine.model import LoadedModel
from service.engine.request import EMPTY, RawFeatures, StoreFeatures
from service.engine.response import PreparedRequest, RankResult, prepare, sort_candidates
from service.engine.scheduler import BatchKey, QueueEntry
from service.engine.scoring import RequestScores, score_batch
from service.engine.validation import to_invalid_request
from service.protocol.messages import RankOptions
from service.telemetry.batch_tracer import BatchTracer
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer


class FeatureStore(Protocol):
    """Supplies the features that requests leave out."""

    async def lookup(self, model: LoadedModel, options: RankOptions, items: RawFeatures) -> StoreFeatures:
        """Look up the features of a request's user and candidates; never raise because of the store.

        Args:
            model: version that will score the request.
            options: everything but the candidates.
            items: the candidates, not validated yet.
        """
        ...

    async def close(self) -> None:
        """Close the connections of the store."""
        ...


WATCH_SECONDS = 1.0
"""Seconds between two measurements of the duration of the current batch."""


class Engine:
    """Ranks requests; one instance per process.

    All models share one inference thread, so that requests queue for the CPU cores instead of competing for them.

    Args:
        max_batch_rows: maximum number of candidates per batch.
        metrics: receives queue and scoring metrics.
        feature_store: source of features that requests leave out; None: only the bundle's tables.
        max_deadline_ms: upper bound on every request's deadline, including requests that set none; None: no bound.
        batch_tracer: records batches for traces; None: no traces.
        traced: whether results hold the feature values that the requests do not contain, for the served log.
    """

    def __init__(
        self,
        max_batch_rows: int,
        metrics: Metrics,
        feature_store: FeatureStore | None = None,
        max_deadline_ms: float | None = None,
        batch_tracer: BatchTracer | None = None,
        *,
        traced: bool = False,
    ) -> None:
        self._metrics, self._feature_store, self._traced = metrics, feature_store, traced
        score = self._score_batch if batch_tracer is None else partial(self._trace_batch, batch_tracer)
        self._batcher = Batcher(score, max_batch_rows)
        self._explainer = Explainer(metrics.queue_explanations)
        self._max_deadline_ms = math.inf if max_deadline_ms is None else max_deadline_ms
        self._active_requests = 0

    @property
    def busy(self) -> bool:
        """Whether a request is being ranked."""
        return self._active_requests > 0

    async def watch(self) -> None:
        """Measure the duration of the current batch every ``WATCH_SECONDS``, until cancelled."""
        while True:
            self._metrics.scoring_seconds.set(self._batcher.scoring_seconds)
            await asyncio.sleep(WATCH_SECONDS)

    async def rank(
        self, model: LoadedModel, options: RankOptions, items: RawFeatures, timer: StageTimer, *, counted: bool = True
    ) -> RankResult:
        """Rank the candidates of a request; a request that is cancelled while it is queued is not scored.

        Args:
            model: version that scores the request.
            options: everything but the candidates.
            items: the candidates, not validated yet.
            timer: stage timer of the request; the deadline counts from its arrival.
            counted: whether the scoring metrics count the request.

        Raises:
            DeadlineExceededError: the deadline passed before scoring, or the explanation, started.
            InvalidRequestError: a field of the request is invalid.
            ScoringError: the backend failed.
            TooManyExplanationsError: too many requests already wait for contributions.
        """
        self._active_requests += 1
        try:
            deadline_ms = min(options.deadline_ms or math.inf, self._max_deadline_ms)
            _check_deadline(deadline_ms, timer)
            prepared = await self._prepare(model, options, items, deadline_ms, timer)
            try:
                graph = model.ranker.contributions_graph if prepared.explain else None
                if graph is None:
                    return await self._score(model, prepared, deadline_ms, timer, counted)
                with self._explainer.reserve():
                    result = await self._score(model, prepared, deadline_ms, timer, counted)
                    return await self._explainer.explain(graph, model, result, timer.arrived + deadline_ms / 1000)
            except InvalidInputError as error:
                raise to_invalid_request(error, model.ranker.schema) from None
        finally:
            self._active_requests -= 1

    async def _prepare(
        self, model: LoadedModel, options: RankOptions, items: RawFeatures, deadline_ms: float, timer: StageTimer
    ) -> PreparedRequest:
        """Look up features in the feature store and validate the request."""
        stored = EMPTY
        if self._feature_store is not None:
            timer.end("parse")
            stored = await self._feature_store.lookup(model, options, items)
            timer.end("store")
            _check_deadline(deadline_ms, timer)
        prepared = prepare(model.ranker, model.encoder, options, items, stored)
        timer.end("parse")
        return prepared

    async def _score(
        self, model: LoadedModel, prepared: PreparedRequest, deadline_ms: float, timer: StageTimer, counted: bool
    ) -> RankResult:
        """Score a request in one or more batches and sort its candidates."""
        features, requested = prepared.request, prepared.tasks
        if not len(features):
            batch, trace = model.encoder.encode(features, traced=self._traced)
            (missing,) = model.encoder.missing(batch, features.counts)
            return sort_candidates(prepared, np.empty((0, len(requested)), np.float32), missing, trace)
        tasks = tuple(sorted(requested))
        deadline = timer.arrived + deadline_ms / 1000
        self._metrics.queue_rows.inc(len(features))
        try:
            parts = await self._batcher.submit((model, tasks), features, timer, deadline, counted=counted)
        except DeadlineExceededError:
            raise _deadline_exceeded(deadline_ms, timer) from None
        finally:
            self._metrics.queue_rows.dec(len(features))
        scored = RequestScores.concat(parts)
        scores = scored.scores.take([tasks.index(task) for task in requested], 1)
        return sort_candidates(prepared, scores, scored.missing, scored.trace)

    def close(self) -> None:
        """Score the queued requests, then stop the threads."""
        self._batcher.close()
        self._explainer.close()

    def _trace_batch(
        self, tracer: BatchTracer, key: BatchKey, batch: Sequence[QueueEntry]
    ) -> list[RequestScores | Exception]:
        """Score a batch and record it for traces."""
        model, tasks = key
        fields = {
            "model": model.name,
            "version": model.version,
            "tasks": tasks,
            "requests": len(batch),
            "rows": sum(entry.batch_rows for entry in batch),
        }
        with tracer.batch([entry.timer for entry in batch], **fields):
            return self._score_batch(key, batch)

    def _score_batch(self, key: BatchKey, batch: Sequence[QueueEntry]) -> list[RequestScores | Exception]:
        """Score a batch and record its metrics."""
        results = score_batch(key, batch, traced=self._traced)
        pairs = zip(results, batch, strict=True)
        counted = [result for result, entry in pairs if isinstance(result, RequestScores) and entry.counted]
        if counted:
            model, tasks = key
            scores = np.concatenate([result.scores for result in counted])
            unseen = {"user": sum(r.unseen_users for r in counted), "item": sum(r.unseen_items for r in counted)}
            missing = sum(result.missing.count for result in counted) - sum(unseen.values())
            self._metrics.record_batch(model.name, model.version, tasks, scores, missing, unseen)
        return results


def _check_deadline(deadline_ms: float, timer: StageTimer) -> None:
    if timer.arrived + deadline_ms / 1000 < time.monotonic():
        raise _deadline_exceeded(deadline_ms, timer)


def _deadline_exceeded(deadline_ms: float, timer: StageTimer) -> DeadlineExceededError:
    elapsed_ms = (time.monotonic() - timer.arrived) * 1000
    return DeadlineExceededError(f"deadline_ms = {deadline_ms:g} passed before scoring started ({elapsed_ms:.1f} ms)")
