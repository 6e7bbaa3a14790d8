"""The bundle's ONNX body on ONNX Runtime: the fast way on CPU; needs no compiler and releases the GIL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
import torch

from ranking.errors import BundleError
from ranking.frozen import FrozenRanker
from ranking.halves import Halves, Sides
from ranking.losses import scores
from service.engine.runtimes.base import Scores
from service.engine.runtimes.embedding import Embedding


class OnnxRuntime:
    """Runs ``body.onnx`` in float32; embeddings are looked up outside of it.

    Args:
        ranker: with a body.
        threads: that one call may use.

    Raises:
        BundleError: the bundle carries no body.
    """

    backend = "onnxruntime"

    def __init__(self, ranker: FrozenRanker, threads: int = 1) -> None:
        if ranker.body is None:
            raise BundleError(
                f"'{ranker.schema.name}' carries no body.onnx (a per-example gate, or it was frozen without): "
                "serve it with the torch backend"
            )
        sides = Sides(ranker.encoder)
        self._shared = Embedding(sides.shared, ranker.graph.weights)
        self._items = Embedding(sides.items, ranker.graph.weights)
        self._calibration = ranker.graph.calibration
        self._tasks = {task.name: task for task in ranker.schema.tasks}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(ranker.body, options, ["CPUExecutionProvider"])
        self._run = onnxruntime.RunOptions()
        self._run.only_execute_path_to_fetches = True  # what other tasks need does not run

    @torch.inference_mode()
    def scores(self, halves: Halves, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        request = halves.request.numpy()
        if len(halves.shared) == 1 and self._items.width:
            request = request[:1]  # broadcast instead of copied to every row
        feeds = {"shared": self._shared(halves.shared), "items": self._items(halves.items), "request": request}
        names = [f"output.{task}" for task in tasks]
        outputs = torch.from_numpy(np.concatenate(self._session.run(names, feeds, self._run), 1))
        found: Scores = scores(self._calibration(outputs, tasks), [self._tasks[task] for task in tasks]).float().numpy()
        return found
