"""The time that a forward's matrix products take at best: their FLOPs over the rate of the fastest kernel at hand.

Counted are the products of the chosen experts and of the towers, as far as they cannot be avoided: of an expert's first
layer, the half that reads what candidates share is due once a request. Counting it for every candidate, as if there
were no halves, gives a longer time, ``UNSPLIT``, which a split engine can stay below.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from ranking.encoding.request_batch import SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker

Product = tuple[int, int, int]
"""[rows, inner] · [inner, columns]."""
KERNELS = ("torch", "onnxruntime")
ROOFLINE, UNSPLIT = "roofline", "roofline, no split"
COLUMNS = 16
"""A product of fewer columns is no work for a matrix unit; it is counted at the lowest rate of the others."""


def products(ranker: FrozenRanker, rows: int, *, split: bool = True) -> dict[Product, int]:
    """Products of one request's forward for all tasks, and how many of each there are.

    Args:
        ranker: what scores.
        rows: candidates.
        split: whether what candidates share is computed once.
    """
    sides, found = SharedItemSplitter(ranker.encoder), Counter[Product]()
    shared, items = len(sides.shared.joined), len(sides.items.joined)
    for layers in ranker.graph.experts.values():
        widths = [len(bias) for _, bias in layers]
        found[1, shared if split else 0, widths[0]] += 1
        found[rows, items if split else shared + items, widths[0]] += 1
        found.update((rows, a, b) for a, b in itertools.pairwise(widths))
    for layers in ranker.graph.towers.values():
        found.update((rows, *weight.shape) for weight, _ in layers)
    return {product: count for product, count in found.items() if product[1]}


def calls(ranker: FrozenRanker, rows: int) -> dict[str, Callable[[], object]]:
    """Name → a call of a product by a kernel, on matrices that are there."""
    found: dict[str, Callable[[], object]] = {}
    for product in products(ranker, rows) | products(ranker, rows, split=False):
        if product[2] >= COLUMNS:
            of_product = (_torch(product), _onnxruntime(product))
            found |= {_name(kernel, product): call for kernel, call in zip(KERNELS, of_product, strict=True)}
    return found


def bounds(ranker: FrozenRanker, rows: int, measured: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Seconds of the best forward in each turn.

    Args:
        ranker: what scores.
        rows: candidates.
        measured: name → seconds in each turn of what ``calls`` gave.
    """
    found = {}
    for name, counts in ((ROOFLINE, products(ranker, rows)), (UNSPLIT, products(ranker, rows, split=False))):
        spent = {
            product: [min(pair) for pair in zip(*(measured[_name(kernel, product)] for kernel in KERNELS), strict=True)]
            for product in counts
            if product[2] >= COLUMNS
        }
        turns = range(len(next(iter(spent.values()))))
        rates = [{product: flops(product) / seconds[turn] for product, seconds in spent.items()} for turn in turns]
        found[name] = [seconds_of(counts, rate) for rate in rates]
    return found


def seconds_of(counts: Mapping[Product, int], rates: Mapping[Product, float]) -> float:
    """The time of so many products at these FLOPs a second."""
    lowest = min(rates.values())
    return sum(flops(product) * count / rates.get(product, lowest) for product, count in counts.items())


def flops(product: Product) -> int:
    """A multiplication and an addition for each pair that meets."""
    rows, inner, columns = product
    return 2 * rows * inner * columns


def _name(kernel: str, product: Product) -> str:
    return f"{kernel} {product}"


def _torch(product: Product) -> Callable[[], object]:
    rows, inner, columns = product
    left, right, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    return lambda: torch.mm(left, right, out=out)


def _onnxruntime(product: Product) -> Callable[[], object]:
    rows, inner, columns = product
    right = np.random.default_rng(0).normal(size=(inner, columns)).astype(np.float32)
    given = helper.make_tensor_value_info("left", TensorProto.FLOAT, [rows, inner])
    wanted = helper.make_tensor_value_info("product", TensorProto.FLOAT, [rows, columns])
    node = helper.make_node("MatMul", ["left", "right"], ["product"])
    graph = helper.make_graph([node], "product", [given], [wanted], [numpy_helper.from_array(right, "right")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = {"left": np.ones((rows, inner), np.float32)}
    return lambda: session.run(None, feeds)
