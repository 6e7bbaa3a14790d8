"""The frozen graph itself, in PyTorch and float64: slow, exact, and there for every gate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ranking.frozen import FrozenRanker
from ranking.halves import Halves, Sides
from ranking.losses import scores
from service.engine.runtimes.base import Precision, Scores


class Reference:
    """Runs ``FrozenGraph``.

    Args:
        ranker: what scores.
    """

    backend = "torch"
    precision: Precision = "float32"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._graph, self._sides = ranker.graph, Sides(ranker.encoder)
        self._tasks = {task.name: task for task in ranker.schema.tasks}

    @torch.inference_mode()
    def scores(self, halves: Halves, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        outputs = self._graph(self._sides.join(halves), tasks)
        found: Scores = scores(outputs, [self._tasks[task] for task in tasks]).float().numpy()
        return found
