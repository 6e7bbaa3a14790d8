"""The ONNX Runtime backend, the fastest on CPU: needs no compiler and releases the GIL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from ranking.encoding.batch import EncodedBatch, Float32, Int64, RaggedIds
from ranking.encoding.request_batch import FeatureGroup, RequestBatch, SharedItemSplitter
from ranking.frozen.embedding_rows import EmbeddingRows
from ranking.frozen.onnx_export import OUTPUT, onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import prefixes
from ranking.schema import PooledFeature, SingleFeature
from service.backends.base import LRUCache, Scores

CACHED_SESSIONS = 32
"""Number of sets of tasks whose session is cached; creating a session costs as much as a few requests."""


class OnnxBackend:
    """Executes the graph behind the embeddings in float32; embeddings are looked up in NumPy.

    Each requested set of tasks gets its own session, with the experts and towers of these tasks.

    Args:
        ranker: ranker with static gates.
        threads: number of threads per call.

    Raises:
        BundleError: the gate is per example.
    """

    name = "onnxruntime"

    def __init__(self, ranker: FrozenRanker, threads: int = 1) -> None:
        splitter = SharedItemSplitter(ranker.encoder)
        self._inputs = [
            (prefix, EmbeddingLookup(splitter.shared, model.weights), EmbeddingLookup(splitter.items, model.weights))
            for prefix, model in zip(prefixes(len(ranker.models)), ranker.models, strict=True)
        ]
        self._ranker, self._has_items = ranker, bool(splitter.items.input_columns)
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads, self._options.inter_op_num_threads = threads, 1
        self._options.log_severity_level = 3
        self._sessions: LRUCache[frozenset[str], onnxruntime.InferenceSession] = LRUCache(CACHED_SESSIONS)
        self._session(ranker.schema.task_names)

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Return scores [candidates, tasks] float32."""
        names = [f"{OUTPUT}{task}" for task in tasks]
        outputs = np.concatenate(self._session(tasks).run(names, self.feeds(batch)), 1)
        return self._ranker.finished(outputs, tasks)

    def feeds(self, batch: RequestBatch) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of the graph by name, see ``onnx_body``."""
        request_index = batch.request_index
        if len(batch.shared) == 1 and self._has_items:
            request_index = request_index[:1]  # broadcast the shared row instead of copying it per candidate
        feeds: dict[str, npt.NDArray[Any]] = {"request": request_index}
        for prefix, shared, items in self._inputs:
            feeds |= {f"{prefix}shared": shared(batch.shared), f"{prefix}items": items(batch.items)}
        return feeds

    def _session(self, tasks: Sequence[str]) -> onnxruntime.InferenceSession:
        key = frozenset(tasks)
        return self._sessions.get(key, lambda: self._create_session(key))

    def _create_session(self, tasks: frozenset[str]) -> onnxruntime.InferenceSession:
        body = onnx_body(self._ranker, sorted(tasks))
        return onnxruntime.InferenceSession(body, self._options, ["CPUExecutionProvider"])


class EmbeddingLookup:
    """Looks up the embeddings of one feature group in NumPy.

    Consecutive features of equal width share one flat table and one look-up, because the overhead of a look-up exceeds
    its cost per row.

    Args:
        group: feature group.
        weights: weights of the graph, see ``ranking.frozen.embedding_rows``.
    """

    def __init__(self, group: FeatureGroup, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        runs = [list(run) for _, run in itertools.groupby(group.singles, lambda feature: feature.dim)]
        self._singles = [(len(run), _single_lookup(run, weights)) for run in runs]
        tables = [EmbeddingRows.of(weights, bag.table) for bag in group.bags]
        self._bags = [_bag_lookup(table, bag) for table, bag in zip(tables, group.bags, strict=True)]
        self.width = len(group.input_columns)

    def __call__(self, inputs: EncodedBatch) -> Float32:
        """Return the model inputs of the group [rows, width]: single features, bags, dense values."""
        parts, start = [], 0
        for count, look_up in self._singles:
            parts.append(look_up(inputs.ids[:, start : start + count]))
            start += count
        parts += [look_up(bag) for look_up, bag in zip(self._bags, inputs.bags, strict=True)]
        return np.concatenate([*parts, inputs.dense], 1)


def _single_lookup(
    features: Sequence[SingleFeature], weights: Mapping[str, npt.NDArray[Any]]
) -> Callable[[Int64], Float32]:
    """Return the look-up of consecutive features of equal width: [rows, features] to [rows, features · width]."""
    tables = {feature.table: EmbeddingRows.of(weights, feature.table) for feature in features}
    sizes = [len(table.numbers) for table in tables.values()]
    offsets = dict(zip(tables, itertools.accumulate(sizes, initial=0), strict=False))
    flat = EmbeddingRows.concat(list(tables.values()))
    starts = np.array([offsets[feature.table] for feature in features])
    width = len(features) * flat.numbers.shape[1]

    def look_up(ids: Int64) -> Float32:
        return flat.take(ids + starts).reshape(len(ids), width)

    return look_up


def _bag_lookup(table: EmbeddingRows, feature: PooledFeature) -> Callable[[RaggedIds], Float32]:
    """Return the look-up of a bag: pooled embeddings [rows, width], 0 for empty lists."""

    def look_up(bag: RaggedIds) -> Float32:
        pooled = np.zeros((len(bag.lengths), table.numbers.shape[1]), np.float32)
        filled = np.flatnonzero(bag.lengths)
        lengths = bag.lengths[filled]
        sums = np.add.reduceat(table.take(bag.values), np.cumsum(lengths) - lengths)
        pooled[filled] = sums if feature.pooling == "sum" else sums / feature.divisors(lengths)[:, None]
        return pooled

    return look_up
