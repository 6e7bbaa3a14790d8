"""Explains ranked candidates: the contributions of features to the logits of the best ones."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from prometheus_client import Gauge

from ranking.frozen.contributions import Contributions, ContributionsGraph
from service.engine.errors import DeadlineExceededError, TooManyExplanationsError
from service.engine.model import LoadedModel
from service.engine.response import RankResult

MAX_EXPLAINED = 20
"""Maximum number of candidates of a response whose contributions are computed."""
MAX_WAITING = 8
"""Maximum number of requests with contributions in a process, because each can take seconds."""


class Explainer:
    """Computes contributions in one thread of its own, so that other requests are scored in the meantime.

    Args:
        waiting: number of reserved places.
    """

    def __init__(self, waiting: Gauge) -> None:
        self._thread = ThreadPoolExecutor(1, "explain")
        self._turn = asyncio.Lock()
        self._waiting, self._reserved = waiting, 0

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Reserve a place for an explanation, from before the request is scored until it is explained.

        Raises:
            TooManyExplanationsError: all places are taken.
        """
        if self._reserved >= MAX_WAITING:
            raise TooManyExplanationsError
        self._reserved += 1
        self._waiting.inc()
        try:
            yield
        finally:
            self._reserved -= 1
            self._waiting.dec()

    async def explain(
        self, graph: ContributionsGraph, model: LoadedModel, result: RankResult, deadline: float
    ) -> RankResult:
        """Return the result with the contributions of its best candidates, or unchanged if it has no candidates.

        Args:
            graph: graph of the model that computes contributions.
            model: version that scored the request.
            result: sorted candidates of the request.
            deadline: monotonic time by which the computation must have started.

        Raises:
            DeadlineExceededError: the deadline passed before the computation started.
        """
        if not len(result.order):
            return result
        await self._wait_for_turn(deadline)
        computation = asyncio.get_running_loop().run_in_executor(self._thread, _contributions, graph, model, result)
        computation.add_done_callback(lambda _: self._turn.release())
        contributions = await asyncio.shield(computation)  # the thread completes it even if the client disconnects
        return replace(result, contributions=contributions)

    async def _wait_for_turn(self, deadline: float) -> None:
        """Wait until the thread is idle, so that it has no queue: requests that give up leave nothing behind."""
        seconds_left = deadline - time.monotonic()
        try:
            if seconds_left < 0:
                raise TimeoutError
            async with asyncio.timeout(None if math.isinf(seconds_left) else seconds_left):
                await self._turn.acquire()
        except TimeoutError:
            raise DeadlineExceededError("deadline_ms passed before the explanation started") from None

    def close(self) -> None:
        """Complete the computation in progress, then stop the thread; ``explain`` fails from now on."""
        self._thread.shutdown()


def _contributions(graph: ContributionsGraph, model: LoadedModel, result: RankResult) -> Contributions:
    inputs = model.encoder.splitter.merge(model.encoder(result.prepared.request))
    return graph(inputs.take(result.order[:MAX_EXPLAINED]), result.tasks)
