"""The frozen graph itself, in PyTorch and float64: slow, exact, and there for every gate."""

from __future__ import annotations

from collections.abc import Sequence

from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Precision, Scores


class TorchBackend:
    """Runs ``FrozenGraph``.

    Args:
        ranker: what scores.
    """

    backend = "torch"
    precision: Precision = "float32"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._ranker, self._sides = ranker, SharedItemSplitter(ranker.encoder)

    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        return self._ranker.finished(self._ranker.outputs(self._sides.merge(halves), tasks), tasks)
