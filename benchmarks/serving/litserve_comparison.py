"""The service and LitServe in turns, on the same cores, with the same requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.bench.serving import Server
from pipelines.console import log

FORM, CLIENTS = "ids", 32

Loading = Callable[[Server, str, int, int], dict[str, Any]]


class Rivalry:
    """Tunes LitServe, then measures both.

    Args:
        folder: the bundle.
        tuning: batch sizes and time-outs in seconds to try, with either queue.
        turns: of each case.
        ours: makes the service for cores.
        load: server, form, candidates, clients → what a closed loop finds.
    """

    def __init__(
        self,
        folder: Path,
        tuning: Sequence[tuple[int, float]],
        turns: int,
        ours: Callable[[Sequence[int]], Server],
        load: Loading,
    ) -> None:
        self._folder, self._tuning, self._turns, self._ours, self._load = folder, tuning, turns, ours, load

    def measure(self, cases: Sequence[tuple[int, Sequence[int]]]) -> dict[str, Any]:
        """Each case, candidates and cores: the best setting, and both contenders turn by turn."""
        return {"clients": CLIENTS, "form": FORM, "cases": [self._case(n, cores) for n, cores in cases]}

    def _case(self, candidates: int, cores: Sequence[int]) -> dict[str, Any]:
        from pipelines.bench.rival import Rival  # needs LitServe

        first = Rival(str(self._folder), workers=len(cores), threads=1)
        tried = []
        for (size, timeout), fast in itertools.product(self._tuning, (False, True)):
            rival = replace(first, max_batch_size=size, batch_timeout=timeout, fast_queue=fast)
            rate = self._measured(rival.server(cores), candidates)["per_second"]
            tried.append((rate, rival))
            log(f"litserve, batches of {size}, {timeout * 1000:g} ms, fast_queue={fast}: {rate:.1f}/s")
        best = max(tried, key=lambda one: one[0])[1]
        turns = []
        for _ in range(self._turns):
            found = {"litserve": self._measured(best.server(cores), candidates)}
            found["ranker"] = self._measured(self._ours(cores), candidates)
            turns.append(found)
        tuned = {
            "max_batch_size": best.max_batch_size,
            "batch_timeout": best.batch_timeout,
            "fast_queue": best.fast_queue,
            "workers": best.workers,
        }
        return {"candidates": candidates, "cores": len(cores), "tuned": tuned, "turns": turns}

    def _measured(self, server: Server, candidates: int) -> dict[str, Any]:
        with server:
            return self._load(server, FORM, candidates, CLIENTS)
