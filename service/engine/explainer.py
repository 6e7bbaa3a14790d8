"""Explains ranked candidates: the contributions of features to the logits of the best ones."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ranking.frozen.contributions import Contributions, ContributionsGraph
from service.engine.errors import DeadlineExceededError
from service.engine.model import LoadedModel
from service.engine.response import RankResult

MAX_EXPLAINED = 20
"""Maximum number of candidates of a response whose contributions are computed."""


class Explainer:
    """Computes contributions in one thread of its own, so that other requests are scored in the meantime."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "explain")

    async def explain(self, model: LoadedModel, result: RankResult, deadline: float) -> RankResult:
        """Return the result with the contributions of its best candidates.

        The result is returned unchanged if it has no candidates, or if the gate selects experts per example.

        Args:
            model: version that scored the request.
            result: sorted candidates of the request.
            deadline: monotonic time by which the computation must have started.

        Raises:
            DeadlineExceededError: the deadline passed before the computation started.
        """
        graph = model.ranker.contributions_graph
        if graph is None or not len(result.order):
            return result
        arguments = (graph, model, result, deadline)
        contributions = await asyncio.get_running_loop().run_in_executor(self._thread, _contributions, *arguments)
        return replace(result, contributions=contributions)

    def close(self) -> None:
        """Compute the explanations in progress, then stop the thread."""
        self._thread.shutdown()


def _contributions(graph: ContributionsGraph, model: LoadedModel, result: RankResult, deadline: float) -> Contributions:
    if deadline < time.monotonic():
        raise DeadlineExceededError("deadline_ms passed before the explanation started")
    inputs = model.encoder.splitter.merge(model.encoder(result.prepared.request))
    return graph(inputs.take(result.order[:MAX_EXPLAINED]), result.tasks)
