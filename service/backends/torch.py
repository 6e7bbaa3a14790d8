"""The reference backend: the frozen graph in PyTorch and float64, slow but exact, for every gate."""

from __future__ import annotations

from collections.abc import Sequence

from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Precision, Scores


class TorchBackend:
    """Executes ``FrozenGraph``.

    Args:
        ranker: ranker to execute.
    """

    name = "torch"
    precision: Precision = "float32"

    def __init__(self, ranker: FrozenRanker) -> None:
        self._ranker, self._splitter = ranker, SharedItemSplitter(ranker.encoder)

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Return scores [candidates, tasks] float32."""
        return self._ranker.finished(self._ranker.outputs(self._splitter.merge(batch), tasks), tasks)
