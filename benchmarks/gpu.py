"""Measure the service's forward pass on a GPU: the gain of CUDA graphs, and the distance from the device's limits.

    python -m benchmarks.gpu [--turns 20] [--json results.json]

Uses the reference model of docs/benchmarks.md with random weights: 30 categorical features with embeddings of 16
numbers and 20 numeric ones, half of each shared by the candidates of a request; 4 experts of 256-256; 8 tasks with 2
experts each and towers of 64 units. The embedding, the fused layers and the graph runner are those of the service.
They run on tensors instead of a bundle, so that only torch and numpy must be installed. ``--device cpu`` tests the
benchmark with small limits and without CUDA graphs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.serving.interleave import interleave, ratios
from pipelines.bench.tables import section, spread
from ranking.encoding.bins import Bins
from service.backends.torch_modules import (
    Buffers,
    CudaGraphRunner,
    Embedding,
    FusedMoE,
    Layer,
    SelectedExperts,
    bucket_size,
)

CATEGORICAL, NUMERIC, CATEGORIES, DIM = 15, 10, 100_000, 16
"""Categorical and numeric features of each feature group, values per categorical feature, and embedding width."""
WIDTH = CATEGORICAL * DIM + NUMERIC
EXPERT, TOWER = (256, 256), 64
SELECTED_EXPERTS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2), (0, 1), (2, 3))
"""Experts that each task selects."""
CANDIDATES = (1, 10, 100, 500, 1000, 4000)
MAX_CANDIDATES_FOR_GAIN, CANDIDATES_FOR_FLOOR = 500, 4000
"""Candidates per request that the targets for the gain of CUDA graphs and for the floor refer to."""
MIN_GAIN, MAX_FLOOR_RATIO, MAX_ERROR = 3.0, 2.0, 1e-5
"""Targets: eager / replay, replay / floor, and the largest difference from float64 in a score."""
TURN_SECONDS = 0.05
"""Duration of a contender's turn."""


class FeatureGroup(NamedTuple):
    """The fields of ``ranking.encoding.request_batch.FeatureGroup`` that ``Embedding`` reads."""

    singles: list[Feature]
    bags: list[Any]
    dense: list[int]
    bins: Bins
    input_columns: list[int]


class Feature(NamedTuple):
    """The fields of a feature that ``Embedding`` reads."""

    table: str
    dim: int


class Batch(NamedTuple):
    """The fields of ``ranking.encoding.torch_batch.TorchBatch`` that ``Embedding`` reads."""

    ids: Tensor
    bags: tuple[()]
    dense: Tensor


class Weights(NamedTuple):
    """Embedding tables by feature group and feature, and layers by expert and tower: float32 on the CPU."""

    tables: list[list[Tensor]]
    experts: list[list[Layer]]
    towers: list[list[Layer]]


class Request(NamedTuple):
    """Shared features [1, …], item features [candidates, …], and the row of ``shared`` of each candidate."""

    shared: Batch
    items: Batch
    request_index: Tensor

    def tensors(self) -> list[Tensor]:
        """Return all tensors that are copied to the device."""
        return [self.shared.ids, self.shared.dense, self.items.ids, self.items.dense, self.request_index]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Request:
        """Return a request of tensors in the order of ``tensors()``."""
        ids, dense, item_ids, item_dense, request_index = tensors
        return cls(Batch(ids, (), dense), Batch(item_ids, (), item_dense), request_index)


def draw_weights() -> Weights:
    """Draw random weights with which outputs have a magnitude of about one."""

    def layers(*widths: int) -> list[Layer]:
        pairs = itertools.pairwise(widths)
        return [(torch.randn(a, b) * (2 / a) ** 0.5, torch.randn(b) * 0.1) for a, b in pairs]

    tables = [[torch.randn(CATEGORIES, DIM) for _ in range(CATEGORICAL)] for _ in range(2)]
    experts = [layers(2 * WIDTH, *EXPERT) for _ in range(1 + max(map(max, SELECTED_EXPERTS)))]
    return Weights(tables, experts, [layers(EXPERT[-1], TOWER, 1) for _ in SELECTED_EXPERTS])


def draw_request(candidates: int) -> Request:
    """Draw random ids and numbers."""
    shared, items = (
        Batch(torch.randint(CATEGORIES, (rows, CATEGORICAL)), (), torch.randn(rows, NUMERIC))
        for rows in (1, candidates)
    )
    return Request(shared, items, torch.zeros(candidates, dtype=torch.int64))


def reference(weights: Weights, request: Request) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Compute the outputs [candidates, tasks] in float64, one expert and one task at a time on complete rows."""

    def run(x: Tensor, layers: Sequence[Layer], *, last_is_linear: bool) -> Tensor:
        for number, (weight, bias) in enumerate(layers):
            x = x @ weight.double() + bias.double()
            if number < len(layers) - 1 or not last_is_linear:
                x = x.relu()
        return x

    shared, items = (
        torch.cat([*(table[batch.ids[:, i]] for i, table in enumerate(tables)), batch.dense], 1).double()
        for tables, batch in zip(weights.tables, (request.shared, request.items), strict=True)
    )
    x = torch.cat([shared.expand(len(items), -1), items], 1)
    hidden = [run(x, expert, last_is_linear=False) for expert in weights.experts]
    mixed = [torch.stack([hidden[expert] for expert in experts]).mean(0) for experts in SELECTED_EXPERTS]
    outputs = [run(mix, tower, last_is_linear=True) for mix, tower in zip(mixed, weights.towers, strict=True)]
    return torch.cat(outputs, 1).numpy()


class Forward:
    """The service's forward pass for requests up to a number of candidates.

    Args:
        weights: weights of the model.
        candidates: maximum number of candidates per request.
        device: device of the computation.
    """

    def __init__(self, weights: Weights, candidates: int, device: torch.device) -> None:
        named = [{f"embedding.{group}.{i}": t for i, t in enumerate(ts)} for group, ts in enumerate(weights.tables)]
        groups: list[Any] = [
            FeatureGroup(
                [Feature(name.removeprefix("embedding."), DIM) for name in tables],
                [],
                list(range(NUMERIC)),
                Bins.of({}),
                list(range(WIDTH)),
            )
            for tables in named
        ]
        shared, items = (Embedding(group, tables).to(device) for group, tables in zip(groups, named, strict=True))
        first_layers, towers = [tower[0] for tower in weights.towers], [tower[1:] for tower in weights.towers]
        selected = SelectedExperts(
            [
                dict.fromkeys(experts, weight / len(experts))
                for experts, (weight, _) in zip(SELECTED_EXPERTS, first_layers, strict=True)
            ],
            [bias for _, bias in first_layers],
        )
        body = FusedMoE(weights.experts, selected, towers, range(WIDTH), range(WIDTH, 2 * WIDTH)).to(device)
        self._buffers = Buffers(draw_request(bucket_size(candidates)).tensors(), device)
        on_device: Any = Request.of(self._buffers.on_device)

        def compute() -> Tensor:
            outputs: Tensor = body(shared(on_device.shared), items(on_device.items), on_device.request_index)
            return outputs

        self._compute = compute
        self._graph = CudaGraphRunner(compute, self._buffers, device)

    def replay(self, request: Request) -> Tensor:
        """Return the outputs [candidates, tasks] on the CPU, computed as in the service."""
        self._fill(request)
        return self._graph.run()[: len(request.request_index)].clone()

    def eager(self, request: Request) -> Tensor:
        """Return the same outputs, computed with one launch per kernel."""
        self._fill(request)
        self._buffers.transfer()
        return self._compute()[: len(request.request_index)].cpu()

    def _fill(self, request: Request) -> None:
        for buffer, tensor in zip(self._buffers.host, request.tensors(), strict=True):
            buffer[: len(tensor)] = tensor


def minimum_work(candidates: int) -> dict[str, int]:
    """Return the FLOPs and the bytes of device memory that a request needs at least.

    Each weight, embedding row, input and output counts once.
    """
    experts, tasks, (first, second) = 1 + max(map(max, SELECTED_EXPERTS)), len(SELECTED_EXPERTS), EXPERT
    later_layers = experts * first * second + tasks * (second * TOWER + TOWER)
    row = CATEGORICAL * (8 + 4 * DIM) + 4 * NUMERIC + 8 + 4 * tasks
    return {
        "matmul": 2 * candidates * (experts * WIDTH * first + later_layers),
        "memory": 4 * (experts * 2 * WIDTH * first + later_layers) + candidates * row,
    }


def device_limits(device: torch.device, *, small: bool) -> dict[str, tuple[Callable[[], object], int]]:
    """Return functions that reach the peak rates of a device: a product with its FLOPs, a copy with its bytes."""
    side, length = (256, 1 << 18) if small else (4096, 1 << 26)
    left, right = torch.randn(2, side, side, device=device)
    source, target = torch.zeros(2, length, device=device)

    def synchronized(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return run

    return {
        "matmul": (synchronized(lambda: torch.mm(left, right)), 2 * side**3),
        "memory": (synchronized(lambda: target.copy_(source)), 2 * 4 * length),
    }


@torch.inference_mode()
def measure(device: torch.device, turns: int, *, small: bool) -> dict[str, Any]:
    """Measure the parity with float64, and the seconds of each contender and floor by candidates and turn."""
    weights, limits, parity, sizes = draw_weights(), device_limits(device, small=small), 0.0, {}
    for candidates in CANDIDATES:
        forward, request = Forward(weights, candidates, device), draw_request(candidates)
        expected = 1 / (1 + np.exp(-reference(weights, request)))
        for outputs in (forward.replay(request), forward.eager(request)):
            parity = max(parity, float(np.abs(outputs.sigmoid().numpy() - expected).max()))
        calls = {"replay": partial(forward.replay, request), "eager": partial(forward.eager, request)}
        seconds = interleave(calls | {name: call for name, (call, _) in limits.items()}, turns, TURN_SECONDS)
        for name, work in minimum_work(candidates).items():
            seconds[name] = [value * work / limits[name][1] for value in seconds[name]]
        sizes[str(candidates)] = seconds
    return {"parity": parity, "turns": turns, "sizes": sizes}


def format_results(results: dict[str, Any]) -> str:
    """Format a table and the targets."""
    rows, gains = [], []
    for candidates, seconds in results["sizes"].items():
        gain = ratios(seconds["eager"], seconds["replay"])
        if int(candidates) <= MAX_CANDIDATES_FOR_GAIN:
            gains.append(statistics.median(gain))
        floor = [max(pair) for pair in zip(seconds["matmul"], seconds["memory"], strict=True)]
        floor_ratio = ratios(seconds["replay"], floor)
        microseconds = (spread([1e6 * value for value in seconds[name]], ",.0f") for name in ("eager", "replay"))
        rows.append((candidates, *microseconds, spread(gain, ".2f"), spread(floor_ratio, ".2f")))
    targets = [
        f"parity with float64 on the CPU: {results['parity']:.1e} (≤ {MAX_ERROR:g})",
        f"eager / replay at ≤ {MAX_CANDIDATES_FOR_GAIN} candidates: {min(gains):.2f} (≥ {MIN_GAIN:g})",
        f"replay / larger floor at {CANDIDATES_FOR_FLOOR:,} candidates: {statistics.median(floor_ratio):.2f} "
        f"(≤ {MAX_FLOOR_RATIO:g})",
    ]
    caption = f"{results['device']}, torch {torch.__version__}, float32, {results['turns']} turns; copies included."
    header = ("candidates", "eager, µs", "replay, µs", "eager / replay", "replay / larger floor")
    return section("Forward pass on a GPU", caption, header, rows, "\n".join(f"- {target}" for target in targets))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the results; return 1 if the device does not exist."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: test the benchmark itself (default: cuda)"
    )
    parser.add_argument("--turns", type=int, default=20, help="turns of each contender (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measured values to FILE")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu: PyTorch finds no NVIDIA GPU; use --device cpu to test the benchmark", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    results = measure(device, arguments.turns, small=not on_gpu)
    results["device"] = torch.cuda.get_device_name(device) if on_gpu else "CPU, without CUDA graphs"
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    print(format_results(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
