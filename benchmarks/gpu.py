"""The service's forward on a GPU: what a recorded graph gains, and how near it comes to what the device allows.

    python -m benchmarks.gpu [--turns 20] [--json results.json]

The reference model of docs/benchmarks.md with random weights: 30 categorical features of 16 numbers and 20 dense ones,
half of them shared by the candidates of a request; 4 experts 256-256; 8 tasks of 2 experts each, towers of 64. What
runs are the service's own embedding, stacked layers and recording; they are given tensors instead of a bundle, so that
torch and numpy are all that must be installed. ``--device cpu`` computes the same, small and without recording, to see
that it works.
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

from pipelines.bench.tables import section, spread
from pipelines.bench.turns import in_turns, ratios
from service.backends.forward.cuda_graph import CudaGraphRunner, bucket
from service.backends.forward.embedding import Embedding
from service.backends.forward.fused_moe import FusedMoE, Layer

CATEGORIES, NUMBERS, VALUES, DIM = 15, 10, 100_000, 16
"""Of each half: categorical and dense features; ids of each feature, and the width of their embeddings."""
WIDTH = CATEGORIES * DIM + NUMBERS
EXPERT, TOWER = (256, 256), 64
CHOICES = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2), (0, 1), (2, 3))
"""Experts of each task."""
CANDIDATES = (1, 10, 100, 500, 1000, 4000)
FEW, MANY = 500, 4000
"""Up to so many candidates a recording has to gain; at so many the floors are near."""
GAIN, WITHIN, PARITY = 3.0, 2.0, 1e-5
SECONDS = 0.05
"""Of a contender's turn."""


class Half(NamedTuple):
    """What ``Embedding`` reads of a ``ranking.encoding.request_batch.Side``."""

    singles: list[Feature]
    bags: list[Any]
    joined: list[int]


class Feature(NamedTuple):
    """What it reads of a feature."""

    table: str
    dim: int


class Rows(NamedTuple):
    """What it reads of ``ranking.encoding.torch_batch.InputTensors``."""

    ids: Tensor
    bags: tuple[()]
    dense: Tensor


class Weights(NamedTuple):
    """Tables by half and feature, layers of each expert and tower; on the CPU, float32."""

    tables: list[list[Tensor]]
    experts: list[list[Layer]]
    towers: list[list[Layer]]


class Request(NamedTuple):
    """One request: its shared row, its candidates, and the row that each belongs to."""

    shared: Rows
    items: Rows
    request: Tensor

    def tensors(self) -> list[Tensor]:
        """All that goes to the device."""
        return [self.shared.ids, self.shared.dense, self.items.ids, self.items.dense, self.request]

    def map(self, change: Callable[[Tensor], Tensor]) -> Request:
        """The same with changed tensors."""
        ids, dense, item_ids, item_dense, request = map(change, self.tensors())
        return Request(Rows(ids, (), dense), Rows(item_ids, (), item_dense), change(request))


def draw_weights() -> Weights:
    """Of a size that keeps outputs around one."""

    def layers(*widths: int) -> list[Layer]:
        pairs = itertools.pairwise(widths)
        return [(torch.randn(a, b) * (2 / a) ** 0.5, torch.randn(b) * 0.1) for a, b in pairs]

    tables = [[torch.randn(VALUES, DIM) for _ in range(CATEGORIES)] for _ in range(2)]
    experts = [layers(2 * WIDTH, *EXPERT) for _ in range(1 + max(map(max, CHOICES)))]
    return Weights(tables, experts, [layers(EXPERT[-1], TOWER, 1) for _ in CHOICES])


def draw_request(candidates: int) -> Request:
    """Random ids and numbers."""
    shared, items = (Rows(torch.randint(VALUES, (n, CATEGORIES)), (), torch.randn(n, NUMBERS)) for n in (1, candidates))
    return Request(shared, items, torch.zeros(candidates, dtype=torch.int64))


def reference(weights: Weights, request: Request) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Outputs [candidates, tasks] in float64, by the formula: whole rows, one expert and one task at a time."""

    def run(x: Tensor, layers: Sequence[Layer], *, last_is_linear: bool) -> Tensor:
        for number, (weight, bias) in enumerate(layers):
            x = x @ weight.double() + bias.double()
            if number < len(layers) - 1 or not last_is_linear:
                x = x.relu()
        return x

    halves = [
        torch.cat([*(table[rows.ids[:, i]] for i, table in enumerate(tables)), rows.dense], 1).double()
        for tables, rows in zip(weights.tables, (request.shared, request.items), strict=True)
    ]
    x = torch.cat([halves[0].expand(len(halves[1]), -1), halves[1]], 1)
    hidden = [run(x, expert, last_is_linear=False) for expert in weights.experts]
    mixed = [sum(hidden[expert] for expert in chosen) / len(chosen) for chosen in CHOICES]
    outputs = [run(mix, tower, last_is_linear=True) for mix, tower in zip(mixed, weights.towers, strict=True)]
    return torch.cat(outputs, 1).numpy()


class Bucket:
    """The service's forward for requests of up to so many candidates.

    Args:
        weights: of the model.
        candidates: at most.
        device: where it runs.
    """

    def __init__(self, weights: Weights, candidates: int, device: torch.device) -> None:
        named = [{f"embedding.{side}.{i}": t for i, t in enumerate(ts)} for side, ts in enumerate(weights.tables)]
        halves = [
            Half([Feature(name.removeprefix("embedding."), DIM) for name in tables], [], list(range(WIDTH)))
            for tables in named
        ]
        shared, items = (Embedding(half, tables).to(device) for half, tables in zip(halves, named, strict=True))
        equal = [dict.fromkeys(chosen, 1 / len(chosen)) for chosen in CHOICES]
        body = FusedMoE(weights.experts, weights.towers, equal, range(WIDTH), range(WIDTH, 2 * WIDTH)).to(device)
        empty = draw_request(bucket(candidates))
        self._here = empty.map(Tensor.pin_memory) if device.type == "cuda" else empty
        there = empty.map(lambda tensor: tensor.to(device, copy=True))
        self._buffers = list(zip(self._here.tensors(), there.tensors(), strict=True))
        self.compute = lambda: body(shared(there.shared), items(there.items), there.request)
        self._recorded = CudaGraphRunner(self.compute, self._buffers, device)

    def replay(self, request: Request) -> Tensor:
        """Outputs [candidates, tasks] on the CPU, as the service computes them."""
        self._fill(request)
        return self._recorded.run()[: len(request.request)].cpu()

    def eager(self, request: Request) -> Tensor:
        """The same, each kernel launched by itself."""
        self._fill(request)
        for here, there in self._buffers:
            there.copy_(here, non_blocking=True)
        outputs: Tensor = self.compute()[: len(request.request)].cpu()
        return outputs

    def _fill(self, request: Request) -> None:
        for buffer, tensor in zip(self._here.tensors(), request.tensors(), strict=True):
            buffer[: len(tensor)] = tensor


def least(candidates: int) -> dict[str, int]:
    """FLOPs, and bytes on the device, that a request needs at least: weights, rows, inputs and outputs once."""
    experts, tasks, (first, second) = 1 + max(map(max, CHOICES)), len(CHOICES), EXPERT
    behind = experts * first * second + tasks * (second * TOWER + TOWER)
    row = CATEGORIES * (8 + 4 * DIM) + 4 * NUMBERS + 8 + 4 * tasks
    return {
        "matmul": 2 * candidates * (experts * WIDTH * first + behind),
        "memory": 4 * (experts * 2 * WIDTH * first + behind) + candidates * row,
    }


def limits(device: torch.device, small: bool) -> dict[str, tuple[Callable[[], object], int]]:
    """What tells the device's rates: a large product and its FLOPs, a large copy and its bytes."""
    side, length = (256, 1 << 18) if small else (4096, 1 << 26)
    left, right = torch.randn(2, side, side, device=device)
    source, target = torch.zeros(2, length, device=device)

    def waited(call: Callable[[], object]) -> Callable[[], object]:
        def called() -> None:
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return called

    return {
        "matmul": (waited(lambda: torch.mm(left, right)), 2 * side**3),
        "memory": (waited(lambda: target.copy_(source)), 2 * 4 * length),
    }


@torch.inference_mode()
def measure(device: torch.device, turns: int, small: bool) -> dict[str, Any]:
    """Parity, and by candidates the seconds of each contender and floor in each turn."""
    weights, bounds, parity, sizes = draw_weights(), limits(device, small), 0.0, {}
    for count in CANDIDATES:
        forward, request = Bucket(weights, count, device), draw_request(count)
        expected = 1 / (1 + np.exp(-reference(weights, request)))
        for outputs in (forward.replay(request), forward.eager(request)):
            parity = max(parity, float(np.abs(outputs.sigmoid().numpy() - expected).max()))
        calls = {"replay": partial(forward.replay, request), "eager": partial(forward.eager, request)}
        found = in_turns(calls | {name: call for name, (call, _) in bounds.items()}, turns, SECONDS)
        for name, amount in least(count).items():
            found[name] = [seconds * amount / bounds[name][1] for seconds in found[name]]
        sizes[str(count)] = found
    return {"parity": parity, "turns": turns, "sizes": sizes}


def text(found: dict[str, Any]) -> str:
    """A table, and what was aimed at."""
    lines, gains = [], []
    for count, spent in found["sizes"].items():
        gain = ratios(spent["eager"], spent["replay"])
        if int(count) <= FEW:
            gains.append(statistics.median(gain))
        floor = [max(pair) for pair in zip(spent["matmul"], spent["memory"], strict=True)]
        over = ratios(spent["replay"], floor)
        micros = (spread([1e6 * seconds for seconds in spent[name]], ",.0f") for name in ("eager", "replay"))
        lines.append((count, *micros, spread(gain, ".2f"), spread(over, ".2f")))
    aims = [
        f"parity with float64 on the CPU: {found['parity']:.1e} (≤ {PARITY:g})",
        f"eager / replay at ≤ {FEW} candidates: {min(gains):.2f} (≥ {GAIN:g})",
        f"replay over the larger floor at {MANY:,} candidates: {statistics.median(over):.2f} (≤ {WITHIN:g})",
    ]
    how = f"{found['device']}, torch {torch.__version__}, float32, {found['turns']} turns; copies to and fro included."
    header = ("candidates", "eager, µs", "replay, µs", "eager / replay", "replay / larger floor")
    return section("The forward on a GPU", how, header, lines, "\n".join(f"- {aim}" for aim in aims))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; 1 where there is no such device."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to see that it works")
    parser.add_argument("--turns", type=int, default=20, help="of each contender (default: 20)")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu: PyTorch finds no NVIDIA GPU here; --device cpu shows that the benchmark works", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    found = measure(device, arguments.turns, small=not on_gpu)
    found["device"] = torch.cuda.get_device_name(device) if on_gpu else "CPU, nothing recorded"
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
