"""The bundle's ONNX body on ONNX Runtime: the fast way on CPU; needs no compiler and releases the GIL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx.utils import Extractor

from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Precision, Scores
from service.backends.embedding import Embedding
from service.backends.lru_cache import LRUCache

OPERATORS = {"Add", "Gather", "Gemm", "Mul", "Relu"}
"""All that a body is made of; nothing else is executed."""

SESSIONS = 32
"""Sets of tasks whose part of the body is kept ready; making one costs as much as a few requests."""


class OnnxBackend:
    """Runs ``body.onnx`` in float32; embeddings are looked up outside of it.

    Each set of tasks that is asked for gets a session of its own, of the part of the body that leads to its outputs.

    Args:
        ranker: with a body.
        threads: that one call may use.

    Raises:
        BundleError: the bundle carries no body, or one that this library did not write.
    """

    backend = "onnxruntime"
    precision: Precision = "float32"

    def __init__(self, ranker: FrozenRanker, threads: int = 1) -> None:
        if ranker.body is None:
            raise BundleError(
                f"'{ranker.schema.name}' carries no body.onnx (a per-example gate, or it was frozen without): "
                "serve it with the torch backend"
            )
        sides = SharedItemSplitter(ranker.encoder)
        self._shared = Embedding(sides.shared, ranker.weights)
        self._items = Embedding(sides.items, ranker.weights)
        self._ranker = ranker
        self._body = Extractor(_checked(ranker.body))
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads, self._options.inter_op_num_threads = threads, 1
        self._options.log_severity_level = 3
        self._sessions: LRUCache[frozenset[str], onnxruntime.InferenceSession] = LRUCache(SESSIONS)
        self._session(ranker.schema.task_names)

    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        request = halves.request
        if len(halves.shared) == 1 and self._items.width:
            request = request[:1]  # broadcast instead of copied to every row
        feeds = {"shared": self._shared(halves.shared), "items": self._items(halves.items), "request": request}
        names = [f"output.{task}" for task in tasks]
        outputs = np.concatenate(self._session(tasks).run(names, feeds), 1)
        return self._ranker.finished(outputs, tasks)

    def _session(self, tasks: Sequence[str]) -> onnxruntime.InferenceSession:
        asked = frozenset(tasks)
        return self._sessions.get(asked, lambda: self._made(asked))

    def _made(self, tasks: frozenset[str]) -> onnxruntime.InferenceSession:
        part = self._body.extract_model(["shared", "items", "request"], [f"output.{task}" for task in sorted(tasks)])
        return onnxruntime.InferenceSession(part.SerializeToString(), self._options, ["CPUExecutionProvider"])


def _checked(body: bytes) -> onnx.ModelProto:
    try:
        model = onnx.load_from_string(body)
    except DecodeError:
        raise BundleError("body.onnx is no ONNX: freeze the run again") from None
    others = {node.op_type for node in model.graph.node if node.domain or node.op_type not in OPERATORS}
    outside = any(weight.data_location for weight in model.graph.initializer)
    if others or model.functions or outside:
        what = ", ".join(sorted(others)) or "functions or weights of other files"
        raise BundleError(f"body.onnx holds {what}, which no bundle does: freeze the run again")
    return model
