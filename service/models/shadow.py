"""Scores a candidate version on what others have answered, when there is nothing better to do, and compares."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

import numpy as np

from service.engine.engine import Engine
from service.engine.errors import DeadlineExceededError, InvalidRequestError
from service.engine.model import LoadedModel
from service.engine.response import RankResult
from service.engine.validation import ParsedRequest
from service.engine.values import to_list
from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer

log = logging.getLogger("ranker.service")

WAITING = 8
"""Requests that may wait to be scored by a shadow; what comes then is not scored."""


@dataclass(frozen=True)
class ShadowRequest:
    """A request that has been answered.

    Attributes:
        shadow: what is to score it too.
        asked: the request.
        ranked: the answer.
        version: that gave it.
    """

    shadow: LoadedModel
    asked: ParsedRequest
    ranked: RankResult
    version: str


class ShadowScorer:
    """Scores requests a second time, one after the other, each only while no request is being ranked.

    Args:
        engine: that ranks.
        metrics: where differences go, and how many requests were compared.
    """

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._waiting: deque[ShadowRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._complained: set[tuple[str, str]] = set()

    def offer(self, answered: ShadowRequest) -> None:
        """Takes a request to be scored later, if not too many wait already."""
        if len(self._waiting) >= WAITING:
            self._count(answered, "dropped")
            return
        self._waiting.append(answered)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Drops what waits."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # the answer goes out first
            answered = self._waiting.popleft()
            if self._engine.busy:
                self._count(answered, "dropped")
                continue
            try:
                await self._compare(answered)
            except InvalidRequestError as error:
                self._count(answered, "failed")
                self._complain(answered, error.field)
            except DeadlineExceededError as error:
                self._count(answered, "failed")
                self._complain(answered, str(error))
            except Exception as error:
                self._count(answered, "failed")
                self._complain(answered, type(error).__name__)
            else:
                self._count(answered, "scored")
            del answered  # a version must not stay because it scored last

    async def _compare(self, answered: ShadowRequest) -> None:
        shadow, ranked = answered.shadow, answered.ranked
        tasks = [task for task in ranked.tasks if task in shadow.ranker.schema.task_names]
        changes = {"tasks": tasks, "objective": None, "top_n": None, "deadline_ms": None, "explain": False}
        asked = ParsedRequest(answered.asked.options.model_copy(update=changes), answered.asked.candidates)
        again = await self._engine.rank(shadow, asked, StageTimer(), counted=False)
        at = {item: row for row, item in enumerate(to_list(again.ids))}
        rows = [at[item] for item in to_list(ranked.ids)]
        if not rows:
            return
        scores = ranked.scores[:, [ranked.tasks.index(task) for task in tasks]]
        differences = np.abs(again.scores[rows] - scores)
        for task, column in zip(tasks, differences.T, strict=True):
            self._metrics.shadow_difference.labels(shadow.name, task).observe(float(column.mean()))

    def _count(self, answered: ShadowRequest, outcome: str) -> None:
        self._metrics.shadow_requests.labels(answered.shadow.name, outcome).inc()

    def _complain(self, answered: ShadowRequest, reason: str) -> None:
        """Says once of each version that it cannot rank what others can; values are nobody's business."""
        shadow = answered.shadow
        if (shadow.name, shadow.version) not in self._complained:
            self._complained.add((shadow.name, shadow.version))
            what = "the shadow, version %s of '%s', could not rank what version %s did: %s"
            log.warning(what, shadow.version, shadow.name, answered.version, reason)
