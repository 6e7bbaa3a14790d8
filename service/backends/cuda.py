"""The frozen graph on a GPU: all weights and embedding tables there, one recorded CUDA graph for each size of batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch, TorchRaggedIds
from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Precision, Scores
from service.backends.forward.cuda_graph import CudaGraphRunner, bucket
from service.backends.forward.embedding import Embedding
from service.backends.forward.fused_moe import FusedMoE
from service.backends.lru_cache import LRUCache

RECORDED = 128
"""Recorded graphs that are kept."""


class Size(NamedTuple):
    """The bucket of a batch: what is recorded once for all batches that fit into it.

    Attributes:
        tasks: asked for.
        candidates: rows of items.
        requests: rows of shared features; 1 stays 1.
        values: ids of each bag, shared features' first.
    """

    tasks: tuple[str, ...]
    candidates: int
    requests: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Buffers:
    """``RequestBatch`` as tensors that are written over with every batch."""

    shared: TorchBatch
    items: TorchBatch
    request: Tensor

    def all(self) -> list[Tensor]:
        """Every tensor, always in the same order."""
        halves = (self.shared, self.items)
        of_bags = [tensor for half in halves for bag in half.bags for tensor in (bag.values, bag.lengths)]
        return [self.shared.ids, self.shared.dense, self.items.ids, self.items.dense, self.request, *of_bags]

    def map(self, change: Callable[[Tensor], Tensor]) -> Buffers:
        """What becomes of each tensor."""

        def half(some: TorchBatch) -> TorchBatch:
            bags = tuple(TorchRaggedIds(change(bag.values), change(bag.lengths)) for bag in some.bags)
            return TorchBatch(change(some.ids), bags, change(some.dense))

        return Buffers(half(self.shared), half(self.items), change(self.request))

    def fill(self, halves: RequestBatch) -> None:
        """Copies a batch into the first rows."""
        _fill(self.shared, halves.shared)
        _fill(self.items, halves.items)
        self.request[: len(halves)] = torch.from_numpy(halves.request)


class CudaBackend:
    """Scores on a GPU; to be used by one thread.

    A batch is copied into pinned buffers of the next larger size, from there to the device, and a recorded graph is
    replayed: one launch instead of a hundred. On another device than a GPU the same is computed without recording.

    Args:
        ranker: with a static gate.
        device: where.
        precision: of the products behind the embeddings.

    Raises:
        BundleError: a per-example gate, whose work depends on the rows and cannot be recorded.
    """

    backend = "cuda"

    def __init__(self, ranker: FrozenRanker, device: torch.device, precision: Precision = "float32") -> None:
        if ranker.gate is not None:
            raise BundleError(
                f"'{ranker.schema.name}' has a per-example gate, which the cuda backend cannot run: "
                "serve it with the torch backend"
            )
        self._ranker, self._sides, self._device = ranker, SharedItemSplitter(ranker.encoder), device
        self.precision = precision
        self._dtype: torch.dtype = getattr(torch, precision)
        self._shared = Embedding(self._sides.shared, ranker.graph.weights).to(device)
        self._items = Embedding(self._sides.items, ranker.graph.weights).to(device)
        self._buckets: LRUCache[Size, _Bucket] = LRUCache(RECORDED)

    @torch.inference_mode()
    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        if not len(halves):
            return np.empty((0, len(tasks)), np.float32)
        size = _size(halves, tasks)
        outputs = self._buckets.get(size, lambda: self._bucket(size)).run(halves)
        return self._ranker.finished(outputs.numpy(), tasks)

    def _bucket(self, size: Size) -> _Bucket:
        body = self._body(size.tasks).to(self._device, self._dtype)

        def compute(batch: Buffers) -> Tensor:
            shared, items = self._shared(batch.shared), self._items(batch.items)
            outputs: Tensor = body(shared.to(self._dtype), items.to(self._dtype), batch.request)
            return outputs.float()

        return _Bucket(compute, self._empty(size), self._device)

    def _body(self, tasks: Sequence[str]) -> FusedMoE:
        graph = self._ranker.graph
        used = graph.selection.experts_for(tasks)
        return FusedMoE(
            [graph.experts[expert] for expert in used],
            [graph.towers[task] for task in tasks],
            [{used.index(expert): weight for expert, weight in graph.selection.tasks[task].items()} for task in tasks],
            self._sides.shared.joined,
            self._sides.items.joined,
        )

    def _empty(self, size: Size) -> Buffers:
        """Buffers of a bucket; every number in them is an id that exists."""
        shared, items = self._sides.shared, self._sides.items
        few = len(shared.bags)
        return Buffers(
            _zeros(size.requests, len(shared.ids), size.values[:few], len(shared.dense)),
            _zeros(size.candidates, len(items.ids), size.values[few:], len(items.dense)),
            torch.zeros(size.candidates, dtype=torch.int64),
        )


class _Bucket:
    """Buffers here and on the device, and what is replayed on them."""

    def __init__(self, compute: Callable[[Buffers], Tensor], empty: Buffers, device: torch.device) -> None:
        self._here = empty.map(lambda buffer: buffer.pin_memory()) if device.type == "cuda" else empty
        there = empty.map(lambda buffer: buffer.to(device, copy=True))
        pairs = list(zip(self._here.all(), there.all(), strict=True))
        self._recorded = CudaGraphRunner(lambda: compute(there), pairs, device)

    def run(self, halves: RequestBatch) -> Tensor:
        """Outputs [candidates, tasks] here."""
        self._here.fill(halves)
        return self._recorded.run()[: len(halves)].cpu()  # waits for the device


def _size(halves: RequestBatch, tasks: Sequence[str]) -> Size:
    bags = [*halves.shared.bags, *halves.items.bags]
    requests = len(halves.shared)
    return Size(
        tuple(tasks),
        bucket(len(halves)),
        1 if requests == 1 else bucket(requests),
        tuple(bucket(len(bag.values)) for bag in bags),
    )


def _zeros(rows: int, ids: int, values: Sequence[int], dense: int) -> TorchBatch:
    bags = tuple(
        TorchRaggedIds(torch.zeros(v, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)) for v in values
    )
    return TorchBatch(torch.zeros(rows, ids, dtype=torch.int64), bags, torch.zeros(rows, dense))


def _fill(buffers: TorchBatch, inputs: EncodedBatch) -> None:
    """Copies rows into the first of a bucket; the others keep what was there, but have empty bags."""
    rows, given = len(inputs), TorchBatch.from_numpy(inputs)
    buffers.ids[:rows], buffers.dense[:rows] = given.ids, given.dense
    for buffer, bag in zip(buffers.bags, given.bags, strict=True):
        buffer.values[: len(bag.values)], buffer.lengths[:rows] = bag.values, bag.lengths
        buffer.lengths[rows:] = 0
