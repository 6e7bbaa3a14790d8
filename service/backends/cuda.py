"""The CUDA backend: weights and embedding tables on the GPU, and one captured CUDA graph per batch size."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch, TorchRaggedIds
from ranking.frozen.graph import FrozenGraph
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import LRUCache, Scores
from service.backends.torch_modules import (
    CAPTURES,
    Buffers,
    CudaGraphRunner,
    Embedding,
    FusedMoE,
    SelectedExperts,
    bucket_size,
)

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

CACHED_GRAPHS = 128
"""Number of captured graphs that are cached."""


class BucketSize(NamedTuple):
    """Sizes of a bucket; one graph is captured for all batches that fit into it.

    Attributes:
        tasks: requested tasks.
        candidates: rows of item features.
        requests: rows of shared features; a single request has its own bucket.
        bag_values: number of ids of each bag, first of shared features, then of items.
    """

    tasks: tuple[str, ...]
    candidates: int
    requests: int
    bag_values: tuple[int, ...]


@dataclass(frozen=True)
class BatchBuffers:
    """A ``RequestBatch`` as tensors that each batch overwrites."""

    shared: TorchBatch
    items: TorchBatch
    request_index: Tensor

    def tensors(self) -> list[Tensor]:
        """Return all tensors in a fixed order."""
        shared, items = self.shared, self.items
        bags = [tensor for bag in (*shared.bags, *items.bags) for tensor in (bag.values, bag.lengths)]
        return [shared.ids, shared.dense, items.ids, items.dense, self.request_index, *bags]

    def replaced(self, tensors: Sequence[Tensor]) -> BatchBuffers:
        """Return buffers with these tensors, in the order of ``tensors()``."""
        rest = iter(tensors)
        shared_ids, shared_dense, item_ids, item_dense, request_index = islice(rest, 5)
        shared_bags, item_bags = (
            tuple(TorchRaggedIds(next(rest), next(rest)) for _ in group.bags) for group in (self.shared, self.items)
        )
        shared, items = TorchBatch(shared_ids, shared_bags, shared_dense), TorchBatch(item_ids, item_bags, item_dense)
        return BatchBuffers(shared, items, request_index)

    def fill(self, batch: RequestBatch) -> None:
        """Copy a batch into the first rows."""
        _fill(self.shared, batch.shared)
        _fill(self.items, batch.items)
        self.request_index[: len(batch)] = torch.from_numpy(batch.request_index)


class CudaBackend:
    """Scores on a GPU. Not thread-safe.

    A batch is copied into pinned buffers of the next larger bucket, then to the device, where a captured graph is
    replayed: one launch instead of about forty. On a device other than a GPU, the computation runs without a graph.

    Args:
        ranker: ranker with static gates.
        device: device of the computation.

    Raises:
        BundleError: the gate is per example; its work depends on the rows, so that it cannot be captured.
    """

    name = "cuda"

    def __init__(self, ranker: FrozenRanker, device: torch.device) -> None:
        ranker.require_backend(self.name)
        self._ranker, self._splitter, self._device = ranker, SharedItemSplitter(ranker.encoder), device
        self._embeddings = [
            (
                Embedding(self._splitter.shared, graph.weights).to(device),
                Embedding(self._splitter.items, graph.weights).to(device),
            )
            for graph in ranker.graph.graphs
        ]
        self._buckets: LRUCache[BucketSize, _Bucket] = LRUCache(CACHED_GRAPHS)
        weakref.finalize(self, _clear, self._buckets).atexit = False
        self._bodies: weakref.WeakValueDictionary[tuple[str, ...], nn.ModuleList] = weakref.WeakValueDictionary()
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @torch.inference_mode()
    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Return scores [candidates, tasks] float32."""
        if not len(batch):
            return np.empty((0, len(tasks)), np.float32)
        size = _bucket_size(batch, tasks)
        return self._ranker.finished(self._bucket(size).run(batch).numpy(), tasks)

    def _bucket(self, size: BucketSize) -> _Bucket:
        # A new bucket may evict another: see CAPTURES.
        with nullcontext() if size in self._buckets else CAPTURES:
            return self._buckets.get(size, lambda: self._create_bucket(size))

    def _create_bucket(self, size: BucketSize) -> _Bucket:
        bodies = self._bodies.get(size.tasks)  # shared by the buckets of the same tasks
        if bodies is None:
            created = nn.ModuleList(self._create_body(graph, size.tasks) for graph in self._ranker.graph.graphs)
            self._bodies[size.tasks] = bodies = created.to(self._device)
        embeddings = self._embeddings  # not self: a cycle would keep the backend of a replaced version

        def compute(buffers: BatchBuffers) -> Tensor:
            outputs = [
                body(shared(buffers.shared), items(buffers.items), buffers.request_index)
                for (shared, items), body in zip(embeddings, bodies, strict=True)
            ]
            return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)

        return _Bucket(compute, self._empty_buffers(size), self._device, self._pool)

    def _create_body(self, graph: FrozenGraph, tasks: Sequence[str]) -> FusedMoE:
        used, towers = graph.selection.experts_for(tasks), [graph.towers[task] for task in tasks]
        first_weights = [
            {used.index(expert): weight for expert, weight in _first_weights(graph, task).items()} for task in tasks
        ]
        return FusedMoE(
            [graph.experts[expert] for expert in used],
            SelectedExperts(first_weights, [tower[0][1] for tower in towers]),
            [tower[1:] for tower in towers],
            self._splitter.shared.input_columns,
            self._splitter.items.input_columns,
        )

    def _empty_buffers(self, size: BucketSize) -> BatchBuffers:
        """Return buffers of zeros, which are valid ids."""
        shared, items = self._splitter.shared, self._splitter.items
        shared_bags = len(shared.bags)
        return BatchBuffers(
            _zeros(size.requests, len(shared.ids), size.bag_values[:shared_bags], len(shared.dense)),
            _zeros(size.candidates, len(items.ids), size.bag_values[shared_bags:], len(items.dense)),
            torch.zeros(size.candidates, dtype=torch.int64),
        )


def _clear(buckets: LRUCache[BucketSize, _Bucket]) -> None:
    with CAPTURES:
        buckets.clear()


class _Bucket:
    """Buffers of one bucket on the host and on the device, and the graph that reads them."""

    def __init__(
        self,
        compute: Callable[[BatchBuffers], Tensor],
        empty: BatchBuffers,
        device: torch.device,
        pool: _POOL_HANDLE | None,
    ) -> None:
        buffers = Buffers(empty.tensors(), device)
        self._host, on_device = empty.replaced(buffers.host), empty.replaced(buffers.on_device)
        self._runner = CudaGraphRunner(lambda: compute(on_device), buffers, device, pool)

    def run(self, batch: RequestBatch) -> Tensor:
        """Return outputs [candidates, tasks] on the host."""
        self._host.fill(batch)
        return self._runner.run()[: len(batch)].clone()


def _first_weights(graph: FrozenGraph, task: str) -> dict[int, Tensor]:
    """Return the weight [width, outputs] of a tower's first layer for the outputs of each of its task's experts."""
    factors, weight = graph.factors[task], graph.towers[task][0][0]
    side_by_side = graph.selection.reading == "side_by_side"
    blocks = weight.chunk(len(factors)) if side_by_side else [weight] * len(factors)
    return {
        expert: factor.reshape(-1, 1) * block for (expert, factor), block in zip(factors.items(), blocks, strict=True)
    }


def _bucket_size(batch: RequestBatch, tasks: Sequence[str]) -> BucketSize:
    requests = 1 if len(batch.shared) == 1 else bucket_size(len(batch.shared))
    bag_values = tuple(bucket_size(len(bag.values)) for bag in (*batch.shared.bags, *batch.items.bags))
    return BucketSize(tuple(tasks), bucket_size(len(batch)), requests, bag_values)


def _zeros(rows: int, ids: int, bag_values: Sequence[int], dense: int) -> TorchBatch:
    bags = tuple(
        TorchRaggedIds(torch.zeros(values, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64))
        for values in bag_values
    )
    return TorchBatch(torch.zeros(rows, ids, dtype=torch.int64), bags, torch.zeros(rows, dense))


def _fill(buffers: TorchBatch, inputs: EncodedBatch) -> None:
    """Copy rows to the start of the buffers; the remaining rows keep their contents, but get empty bags."""
    rows, tensors = len(inputs), TorchBatch.from_numpy(inputs)
    buffers.ids[:rows], buffers.dense[:rows] = tensors.ids, tensors.dense
    for buffer, bag in zip(buffers.bags, tensors.bags, strict=True):
        buffer.values[: len(bag.values)], buffer.lengths[:rows] = bag.values, bag.lengths
        buffer.lengths[rows:] = 0
