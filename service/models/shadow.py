"""Scoring of answered requests by a shadow version, for comparison."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

import numpy as np

from service.engine.engine import Engine
from service.engine.errors import DeadlineExceededError, InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.request import RawFeatures
from service.engine.response import RankResult
from service.engine.values import to_list
from service.protocol.messages import RankOptions
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer

log = logging.getLogger("ranker.service")

MAX_QUEUED_REQUESTS = 8
"""Maximum number of requests that wait for the shadow. Requests above it are dropped from the comparison."""


@dataclass(frozen=True)
class ShadowRequest:
    """An answered request, to be scored by a shadow version.

    Attributes:
        shadow: version that scores the request again.
        options: everything in the request but its candidates.
        items: its candidates.
        result: its result.
        version: version that produced the result.
    """

    shadow: LoadedModel
    options: RankOptions
    items: RawFeatures
    result: RankResult
    version: str


class ShadowScorer:
    """Scores requests with shadow versions, one at a time, and only while the engine ranks no other request.

    Args:
        engine: engine that ranks the requests.
        metrics: records outcomes and score differences.
    """

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._queue: deque[ShadowRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._logged: set[tuple[str, str]] = set()

    def submit(self, shadow_request: ShadowRequest) -> None:
        """Queue a request, or drop it if the queue is full."""
        if len(self._queue) >= MAX_QUEUED_REQUESTS:
            self._count(shadow_request, "dropped")
            return
        self._queue.append(shadow_request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Drop the queued requests and stop."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._queue:
            await asyncio.sleep(0)  # let the response be sent first
            shadow_request = self._queue.popleft()
            if self._engine.busy:
                self._count(shadow_request, "dropped")
                continue
            try:
                await self._compare(shadow_request)
            except InvalidRequestError as error:
                self._fail(shadow_request, error.field)  # the reason may quote a value of the request
            except DeadlineExceededError as error:
                self._fail(shadow_request, str(error))
            except Exception as error:
                self._fail(shadow_request, type(error).__name__)
            else:
                self._count(shadow_request, "scored")
            del shadow_request  # do not keep its versions alive while waiting

    async def _compare(self, shadow_request: ShadowRequest) -> None:
        shadow, result = shadow_request.shadow, shadow_request.result
        tasks = [task for task in result.tasks if task in shadow.ranker.schema.task_names]
        changes = {"tasks": tasks, "objective": None, "top_n": None, "deadline_ms": None, "explain": False}
        options = shadow_request.options.model_copy(update=changes)
        shadow_result = await self._engine.rank(shadow, options, shadow_request.items, StageTimer(), counted=False)
        row_of = {item: row for row, item in enumerate(to_list(shadow_result.ids))}
        rows = [row_of[item] for item in to_list(result.ids)]
        if not rows:
            return
        scores = result.scores[:, [result.tasks.index(task) for task in tasks]]
        differences = np.abs(shadow_result.scores[rows] - scores)
        for task, column in zip(tasks, differences.T, strict=True):
            self._metrics.shadow_difference.labels(shadow.name, task).observe(float(column.mean()))

    def _count(self, shadow_request: ShadowRequest, outcome: str) -> None:
        self._metrics.shadow_requests.labels(shadow_request.shadow.name, outcome).inc()

    def _fail(self, shadow_request: ShadowRequest, reason: str) -> None:
        """Count a failure, and log the first one of each version."""
        self._count(shadow_request, "failed")
        shadow = shadow_request.shadow
        if (shadow.name, shadow.version) not in self._logged:
            self._logged.add((shadow.name, shadow.version))
            message = "shadow version %s of '%s' failed on a request that version %s ranked: %s"
            log.warning(message, shadow.version, shadow.name, shadow_request.version, reason)
