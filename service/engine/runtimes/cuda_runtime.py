"""The frozen graph on a GPU: all weights and embedding tables there, one recorded CUDA graph for each size of batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ranking.encoding import Bag, Inputs
from ranking.errors import BundleError
from ranking.frozen import FrozenRanker
from ranking.halves import Halves, Sides
from service.engine.forward.embedding import Embedding
from service.engine.forward.recorded import Recorded, bucket
from service.engine.forward.stacked import Stacked
from service.engine.runtimes.base import Precision, Scores
from service.engine.runtimes.recent import Recent

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


class CudaRuntime:
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
        if ranker.graph.gate is not None:
            raise BundleError(
                f"'{ranker.schema.name}' has a per-example gate, which the cuda backend cannot run: "
                "serve it with the torch backend"
            )
        self._ranker, self._sides, self._device = ranker, Sides(ranker.encoder), device
        self.precision = precision
        self._dtype: torch.dtype = getattr(torch, precision)
        self._shared = Embedding(self._sides.shared, ranker.graph.weights).to(device)
        self._items = Embedding(self._sides.items, ranker.graph.weights).to(device)
        self._buckets: Recent[Size, _Bucket] = Recent(RECORDED)

    @torch.inference_mode()
    def scores(self, halves: Halves, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32."""
        if not len(halves):
            return np.empty((0, len(tasks)), np.float32)
        size = _size(halves, tasks)
        outputs = self._buckets.get(size, lambda: self._bucket(size)).run(halves)
        found: Scores = self._ranker.finished(outputs, tasks).numpy()
        return found

    def _bucket(self, size: Size) -> _Bucket:
        body = self._body(size.tasks).to(self._device, self._dtype)

        def compute(batch: Halves) -> Tensor:
            shared, items = self._shared(batch.shared), self._items(batch.items)
            outputs: Tensor = body(shared.to(self._dtype), items.to(self._dtype), batch.request)
            return outputs.float()

        return _Bucket(compute, self._empty(size), self._device)

    def _body(self, tasks: Sequence[str]) -> Stacked:
        graph = self._ranker.graph
        used = graph.selection.experts_for(tasks)
        return Stacked(
            [graph.experts[expert] for expert in used],
            [graph.towers[task] for task in tasks],
            [{used.index(expert): weight for expert, weight in graph.selection.tasks[task].items()} for task in tasks],
            self._sides.shared.joined,
            self._sides.items.joined,
        )

    def _empty(self, size: Size) -> Halves:
        """Buffers of a bucket; every number in them is an id that exists."""
        shared, items = self._sides.shared, self._sides.items
        few = len(shared.bags)
        return Halves(
            _zeros(size.requests, len(shared.ids), size.values[:few], len(shared.dense)),
            _zeros(size.candidates, len(items.ids), size.values[few:], len(items.dense)),
            torch.zeros(size.candidates, dtype=torch.int64),
        )


class _Bucket:
    """Buffers here and on the device, and what is replayed on them."""

    def __init__(self, compute: Callable[[Halves], Tensor], empty: Halves, device: torch.device) -> None:
        self._here = _map(empty, lambda buffer: buffer.pin_memory()) if device.type == "cuda" else empty
        there = _map(empty, lambda buffer: buffer.to(device, copy=True))
        buffers = list(zip(_buffers(self._here), _buffers(there), strict=True))
        self._recorded = Recorded(lambda: compute(there), buffers, device)

    def run(self, halves: Halves) -> Tensor:
        """Outputs [candidates, tasks] here."""
        _fill(self._here.shared, halves.shared)
        _fill(self._here.items, halves.items)
        self._here.request[: len(halves)] = halves.request
        return self._recorded.run()[: len(halves)].cpu()  # waits for the device


def _size(halves: Halves, tasks: Sequence[str]) -> Size:
    bags = [*halves.shared.bags, *halves.items.bags]
    requests = len(halves.shared)
    return Size(
        tuple(tasks),
        bucket(len(halves)),
        1 if requests == 1 else bucket(requests),
        tuple(bucket(len(bag.values)) for bag in bags),
    )


def _zeros(rows: int, ids: int, values: Sequence[int], dense: int) -> Inputs:
    bags = tuple(Bag(torch.zeros(v, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)) for v in values)
    missing = torch.empty(rows, 0, dtype=torch.bool)  # nothing behind the encoder asks for it
    return Inputs(torch.zeros(rows, ids, dtype=torch.int64), bags, torch.zeros(rows, dense), missing)


def _fill(buffers: Inputs, inputs: Inputs) -> None:
    """Copies rows into the first of a bucket; the others keep what was there, but have empty bags."""
    rows = len(inputs)
    buffers.ids[:rows], buffers.dense[:rows] = inputs.ids, inputs.dense
    for buffer, bag in zip(buffers.bags, inputs.bags, strict=True):
        buffer.values[: len(bag.values)], buffer.lengths[:rows] = bag.values, bag.lengths
        buffer.lengths[rows:] = 0


def _buffers(halves: Halves) -> list[Tensor]:
    of_bags = [t for half in (halves.shared, halves.items) for bag in half.bags for t in (bag.values, bag.lengths)]
    return [halves.shared.ids, halves.shared.dense, halves.items.ids, halves.items.dense, halves.request, *of_bags]


def _map(halves: Halves, change: Callable[[Tensor], Tensor]) -> Halves:
    def inputs(half: Inputs) -> Inputs:
        bags = tuple(Bag(change(bag.values), change(bag.lengths)) for bag in half.bags)
        return Inputs(change(half.ids), bags, change(half.dense), half.missing)

    return Halves(inputs(halves.shared), inputs(halves.items), change(halves.request))
