"""The frozen graph itself, in PyTorch and float64: slow, exact, and there for every gate."""

from __future__ import annotations

from collections.abc import Sequence

from ranking.frozen import FrozenRanker
from ranking.halves import Halves, Sides
from service.engine.runtimes.base import Precision, Scores


class Reference:
    """Runs ``FrozenGraph``.

    Args:
        ranker: what scores.
    """

    backend = "torch"
    precision: Precision = "float32"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._ranker, self._sides = ranker, Sides(ranker.encoder)

    def scores(self, halves: Halves, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        return self._ranker.finished(self._ranker.outputs(self._sides.join(halves), tasks), tasks)
