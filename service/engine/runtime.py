"""Runs rankers on one dedicated thread, so that requests queue for the cores instead of fighting for them."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from ranking.frozen import FrozenRanker
from service.api.messages import RankRequest
from service.engine.ranking import Ranked, rank
from service.problems import Problem


class Runtime:
    """The engine behind the API; one per process."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inference")

    async def rank(self, ranker: FrozenRanker, request: RankRequest, arrived: float) -> Ranked:
        """Ranks when its turn comes.

        Args:
            ranker: what scores.
            request: what is ranked.
            arrived: ``time.monotonic()`` of the request's arrival, from which its deadline counts.

        Raises:
            Problem: 504 if the deadline has passed before scoring starts; 422 as ``engine.ranking.rank``.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._rank, ranker, request, arrived)

    @staticmethod
    def _rank(ranker: FrozenRanker, request: RankRequest, arrived: float) -> Ranked:
        waited = (time.monotonic() - arrived) * 1000
        if request.deadline_ms is not None and waited > request.deadline_ms:
            raise Problem(504, f"deadline_ms = {request.deadline_ms:g} passed before scoring started ({waited:.1f} ms)")
        return rank(ranker, request)

    def close(self) -> None:
        """Finishes what is queued."""
        self._thread.shutdown()
