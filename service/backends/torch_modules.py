"""PyTorch modules of the cuda backend, and their execution as CUDA graphs.

``benchmarks/gpu.py`` runs where only PyTorch and NumPy are installed. This file therefore imports nothing else.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ranking.model.dense_inputs import DenseInputs

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

    from ranking.encoding.request_batch import FeatureGroup
    from ranking.encoding.torch_batch import TorchBatch
    from ranking.schema import PooledFeature, SingleFeature

Layer = tuple[Tensor, Tensor]
"""Weight [inputs, outputs] and bias [outputs] of a dense layer."""

MIN_BUCKET_SIZE = 16
"""Rows of the smallest bucket; each next bucket is twice as large."""
WARM_UP_RUNS = 3
"""Runs before a graph is captured, in which libraries select kernels and allocate memory."""
ALIGNMENT = 256
"""Alignment of a tensor within its buffer in bytes, that of CUDA's own allocations."""
CAPTURES = threading.RLock()
"""Held during a capture, and while captured graphs and their buffers are freed.

PyTorch captures all graphs of a process on the same stream, and records an event on it when pinned memory is freed that
a graph has used. An event that is recorded during a capture cannot be queried later.
"""


class Embedding(nn.Module):
    """Looks up the embeddings of one feature group.

    Consecutive features of equal width share one flat table and one look-up, because the overhead of a look-up exceeds
    its cost per row.

    Args:
        group: feature group.
        weights: weights of the graph; ``embedding.TABLE`` is [rows, dim] float32.
    """

    def __init__(self, group: FeatureGroup, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        runs = [list(run) for _, run in itertools.groupby(group.singles, lambda feature: feature.dim)]
        self._counts = [len(run) for run in runs]
        self.runs = nn.ModuleList(_SingleEmbedding(run, weights) for run in runs)
        self.bags = nn.ModuleList(_BagEmbedding(weights[f"embedding.{bag.table}"], bag) for bag in group.bags)
        self.dense = DenseInputs(len(group.dense), group.bins)
        self.width = len(group.input_columns)

    def forward(self, inputs: TorchBatch) -> Tensor:
        """Return the model inputs of the group [rows, width] float32: single features, bags, dense values, bins.

        Values of a bag beyond the lists of the last row are ignored.
        """
        parts, start = [], 0
        for run, count in zip(self.runs, self._counts, strict=True):
            parts.append(run(inputs.ids[:, start : start + count]))
            start += count
        parts += [look_up(bag.values, bag.lengths) for look_up, bag in zip(self.bags, inputs.bags, strict=True)]
        return torch.cat([*parts, self.dense(inputs.dense)], 1)


class _SingleEmbedding(nn.Module):
    """Consecutive features of equal width; ``starts`` holds the first row of each feature's table in the flat one."""

    table: Tensor
    starts: Tensor

    def __init__(self, features: Sequence[SingleFeature], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        tables = {feature.table: weights[f"embedding.{feature.table}"] for feature in features}
        offsets = dict(zip(tables, itertools.accumulate(map(len, tables.values()), initial=0), strict=False))
        self.register_buffer("table", torch.cat(list(tables.values())))
        self.register_buffer("starts", torch.tensor([offsets[feature.table] for feature in features]))

    def forward(self, ids: Tensor) -> Tensor:
        dim = self.table.shape[1]
        rows = (ids + self.starts).reshape(-1, 1).expand(-1, dim)
        # Gathering is as fast as F.embedding, and 5 µs faster for the shared features of one request.
        return self.table.gather(0, rows).view(*ids.shape, dim).flatten(1)


class _BagEmbedding(nn.Module):
    table: Tensor

    def __init__(self, table: Tensor, feature: PooledFeature) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self._feature = feature

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        starts = F.pad(torch.cumsum(lengths, 0), (1, 0))  # an extra last row takes the unused values of the buffer
        sums = F.embedding_bag(values, self.table, starts, mode="sum")[:-1]
        divisors: Tensor = self._feature.divisors(lengths)
        return sums / divisors.unsqueeze(1)


class SelectedExperts(nn.Module):
    """The first layer of all towers, computed from the outputs of the experts that each task selected.

    A tower's first layer is linear, so that it is applied to the output of each expert and the results are added. The
    outputs of the experts, which are wider, are then not summed for each task. The weights of the tasks that selected
    an expert lie side by side, and one batched product computes all of them. An expert that more tasks selected than
    others is the input of several products of that batch.

    Args:
        weights: for each task, the weight [expert width, outputs] of each of its experts, by index. Each expert is one
            of a task's.
        biases: bias [outputs] of each task.
    """

    weight: Tensor
    bias: Tensor
    inputs: Tensor
    product: Tensor
    position: Tensor

    def __init__(self, weights: Sequence[Mapping[int, Tensor]], biases: Sequence[Tensor]) -> None:
        super().__init__()
        self._tasks, (width, self._outputs) = len(weights), next(iter(weights[0].values())).shape
        slots = max(map(len, weights))
        reads = [read for by_expert in weights for read in _reads(by_expert, slots)]
        readers: dict[int, list[int]] = {}
        for row, (expert, _) in enumerate(reads):
            readers.setdefault(expert, []).append(row)
        per_product = -(-len(reads) // len(readers))
        products = [
            (expert, readers[expert][start : start + per_product])
            for expert in sorted(readers)
            for start in range(0, len(readers[expert]), per_product)
        ]
        weight = torch.zeros(len(products), width, per_product, self._outputs)
        product, position = torch.empty(2, len(reads), dtype=torch.int64)
        for number, (_, rows) in enumerate(products):
            for place, row in enumerate(rows):
                weight[number, :, place] = reads[row][1]
                product[row], position[row] = number, place
        self._each_expert_once = len(products) == len(readers)
        self.register_buffer("inputs", torch.tensor([expert for expert, _ in products]))
        self.register_buffer("weight", weight.flatten(2))
        self.register_buffer("bias", torch.stack(list(biases)).unsqueeze(1).float())
        self.register_buffer("product", product)
        self.register_buffer("position", position)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the outputs of the first layer [tasks, candidates, outputs], before the activation function.

        Args:
            hidden: outputs of the experts [experts, candidates, width].
        """
        inputs = hidden if self._each_expert_once else hidden[self.inputs]
        products = torch.bmm(inputs, self.weight)
        count, candidates, _ = products.shape
        by_read = products.view(count, candidates, -1, self._outputs)[self.product, :, self.position]
        summed: Tensor = by_read.view(self._tasks, -1, candidates, self._outputs).sum(1)
        return summed.add_(self.bias)


def _reads(weights: Mapping[int, Tensor], count: int) -> list[tuple[int, Tensor]]:
    """Return the experts and weights of ``count`` products whose sum is a tower's first layer, without its bias.

    A task with fewer experts reads its last one again, with weights of 0.
    """
    reads = list(weights.items())
    expert, weight = reads[-1]
    return reads + [(expert, torch.zeros_like(weight))] * (count - len(reads))


class FusedMoE(nn.Module):
    """Experts and towers of some tasks as a few batched matrix products.

    Experts are stacked, and so are towers, so that a layer is one product. A task reads only its selected experts: no
    other expert contributes, not even as 0 · infinity.

    Args:
        experts: layers of each expert; all experts have the same shape.
        first_layers: first layers of the towers.
        towers: other layers of the tower of each task.
        shared_columns: columns of the first layer's input that the candidates of a request share.
        item_columns: the other columns.
    """

    shared_weight: Tensor
    item_weight: Tensor
    bias: Tensor

    def __init__(
        self,
        experts: Sequence[Sequence[Layer]],
        first_layers: SelectedExperts,
        towers: Sequence[Sequence[Layer]],
        shared_columns: Sequence[int],
        item_columns: Sequence[int],
    ) -> None:
        super().__init__()
        first, *others = _stack(experts)
        weight, bias = first
        self._width = weight.shape[2]
        flat = weight.permute(1, 0, 2).flatten(1)  # [inputs, experts · width]
        self.register_buffer("shared_weight", flat[list(shared_columns)].float())
        self.register_buffer("item_weight", flat[list(item_columns)].float())
        self.register_buffer("bias", bias.flatten().float())
        self.experts = nn.ModuleList(_StackedLinear(*layer) for layer in others)
        self.towers = nn.ModuleList(_StackedLinear(*layer) for layer in _stack(towers))
        self.first_layers = first_layers

    def forward(self, shared: Tensor, items: Tensor, request_index: Tensor) -> Tensor:
        """Return outputs [candidates, tasks] before calibration.

        Args:
            shared: shared model inputs [requests, width].
            items: item model inputs [candidates, width].
            request_index: row of ``shared`` of each candidate [candidates] int64.
        """
        once = torch.addmm(self.bias, shared, self.shared_weight)
        once = once[0] if len(shared) == 1 else once[request_index]  # one request: added within the product
        first = torch.addmm(once, items, self.item_weight).relu_()
        hidden = first.view(len(items), -1, self._width).transpose(0, 1)
        for layer in self.experts:
            hidden = layer(hidden).relu_()
        outputs: Tensor = self.first_layers(hidden)
        for layer in self.towers:
            outputs = layer(outputs.relu_())
        return outputs.squeeze(-1).T


class _StackedLinear(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.float())
        self.register_buffer("bias", bias.unsqueeze(1).float())

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight).add_(self.bias)  # baddbmm copies the bias to each row first


def _stack(networks: Sequence[Sequence[Layer]]) -> list[Layer]:
    """Stack networks of equal shape by layer: weights [networks, inputs, outputs] and biases [networks, outputs]."""
    layers = (zip(*layer, strict=True) for layer in zip(*networks, strict=True))
    return [(torch.stack(weights), torch.stack(biases)) for weights, biases in layers]


def bucket_size(count: int) -> int:
    """Return the number of rows of the smallest bucket that holds ``count`` rows."""
    return max(MIN_BUCKET_SIZE, 1 << max(count - 1, 0).bit_length())


class Buffers:
    """Tensors on the host, pinned for a GPU, and their copies on the device, which one transfer overwrites.

    Args:
        empty: tensors that give shapes, types and first values.
        device: device of the computation.

    Attributes:
        host: tensors to fill.
        on_device: tensors to compute with.
    """

    def __init__(self, empty: Sequence[Tensor], device: torch.device) -> None:
        sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in empty]
        self._host = torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._on_device = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        self.host, self.on_device = (
            [
                flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                for tensor, start in zip(empty, itertools.accumulate(sizes, initial=0), strict=False)
            ]
            for flat in (self._host, self._on_device)
        )
        for host, tensor in zip(self.host, empty, strict=True):
            host.copy_(tensor)
        self.transfer()

    def transfer(self) -> None:
        """Copy all tensors to the device, asynchronously for a GPU."""
        self._on_device.copy_(self._host, non_blocking=True)


class CudaGraphRunner:
    """Captures a computation on fixed buffers, with the copies to and from the device, as a CUDA graph.

    A replay is one launch instead of about forty. On a device other than a GPU, the computation runs without a graph.

    Args:
        compute: reads the buffers on the device and returns outputs there, always of the same shape.
        buffers: inputs of the computation.
        device: device of the computation.
        pool: memory pool of graphs that never run at the same time, from ``torch.cuda.graph_pool_handle``.
    """

    def __init__(
        self,
        compute: Callable[[], Tensor],
        buffers: Buffers,
        device: torch.device,
        pool: _POOL_HANDLE | None = None,
    ) -> None:
        self._compute, self._buffers, self._device = compute, buffers, device
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with CAPTURES:
                self._capture(pool)

    def run(self) -> Tensor:
        """Compute the outputs of the host buffers; the next run overwrites the returned outputs on the host."""
        if self._graph is None:
            self._buffers.transfer()
            return self._compute()
        self._graph.replay()
        torch.cuda.current_stream(self._device).synchronize()
        return self._outputs

    def _capture(self, pool: _POOL_HANDLE | None) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))  # which copies the weights
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                outputs = self._compute()
        torch.cuda.synchronize(self._device)
        self._outputs = torch.empty(outputs.shape, dtype=outputs.dtype, pin_memory=True)
        self._graph = torch.cuda.CUDAGraph()
        # Another thread may use the GPU meanwhile, because it scores or loads a version.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._buffers.transfer()
            self._outputs.copy_(self._compute(), non_blocking=True)
