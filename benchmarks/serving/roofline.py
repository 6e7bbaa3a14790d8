"""Lower bound on the time of a forward pass: the FLOPs of its matrix products divided by the rate of the best kernel.

The products of the selected experts and of the towers count. In the first layer of an expert, the columns that the
candidates of a request share count once per request (``ROOFLINE``). Counting them for every candidate gives a longer
time (``UNSPLIT``), and an engine that uses the split can be faster than that.
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
"""(rows, inner, columns) of a product [rows, inner] · [inner, columns]."""
KERNELS = ("torch", "onnxruntime")
ROOFLINE, UNSPLIT = "roofline", "roofline, no split"
MIN_COLUMNS = 16
"""Narrower products do not use a matrix unit well. They are not timed and count at the lowest rate of the others."""


def products(ranker: FrozenRanker, rows: int, *, split: bool = True) -> dict[Product, int]:
    """Count the matrix products of one request for all tasks.

    Args:
        ranker: the frozen model.
        rows: candidates of the request.
        split: whether shared columns are computed once per request.
    """
    splitter, counts = SharedItemSplitter(ranker.encoder), Counter[Product]()
    shared, items = len(splitter.shared.input_columns), len(splitter.items.input_columns)
    (graph,) = ranker.graph.graphs
    for layers in graph.experts.values():
        widths = [len(bias) for _, bias in layers]
        counts[1, shared if split else 0, widths[0]] += 1
        counts[rows, items if split else shared + items, widths[0]] += 1
        counts.update((rows, a, b) for a, b in itertools.pairwise(widths))
    for layers in graph.towers.values():
        counts.update((rows, *weight.shape) for weight, _ in layers)
    return {product: count for product, count in counts.items() if product[1]}


def calls(ranker: FrozenRanker, rows: int) -> dict[str, Callable[[], object]]:
    """Return name → function that computes a product with a kernel, on matrices in the caches."""
    named_calls: dict[str, Callable[[], object]] = {}
    for product in products(ranker, rows) | products(ranker, rows, split=False):
        if product[2] >= MIN_COLUMNS:
            kernels = (_torch_product(product), _onnxruntime_product(product))
            named_calls |= {_name(kernel, product): call for kernel, call in zip(KERNELS, kernels, strict=True)}
    return named_calls


def bounds(ranker: FrozenRanker, rows: int, measured: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Compute the lower bound on the seconds of a forward pass, one value per turn.

    Args:
        ranker: the frozen model.
        rows: candidates of the request.
        measured: name of each function of ``calls`` → seconds per call, one value per turn.
    """
    results = {}
    for name, counts in ((ROOFLINE, products(ranker, rows)), (UNSPLIT, products(ranker, rows, split=False))):
        best = {
            product: [min(pair) for pair in zip(*(measured[_name(kernel, product)] for kernel in KERNELS), strict=True)]
            for product in counts
            if product[2] >= MIN_COLUMNS
        }
        turns = range(len(next(iter(best.values()))))
        rates = [{product: flops(product) / seconds[turn] for product, seconds in best.items()} for turn in turns]
        results[name] = [total_seconds(counts, rate) for rate in rates]
    return results


def total_seconds(counts: Mapping[Product, int], rates: Mapping[Product, float]) -> float:
    """Return the time of all products at the given FLOPs per second."""
    lowest = min(rates.values())
    return sum(flops(product) * count / rates.get(product, lowest) for product, count in counts.items())


def flops(product: Product) -> int:
    """Count a multiplication and an addition per pair of factors."""
    rows, inner, columns = product
    return 2 * rows * inner * columns


def _name(kernel: str, product: Product) -> str:
    return f"{kernel} {product}"


def _torch_product(product: Product) -> Callable[[], object]:
    rows, inner, columns = product
    left, right, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    return lambda: torch.mm(left, right, out=out)


def _onnxruntime_product(product: Product) -> Callable[[], object]:
    rows, inner, columns = product
    right = np.random.default_rng(0).normal(size=(inner, columns)).astype(np.float32)
    left_info = helper.make_tensor_value_info("left", TensorProto.FLOAT, [rows, inner])
    product_info = helper.make_tensor_value_info("product", TensorProto.FLOAT, [rows, columns])
    node = helper.make_node("MatMul", ["left", "right"], ["product"])
    weights = [numpy_helper.from_array(right, "right")]
    graph = helper.make_graph([node], "product", [left_info], [product_info], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feeds = {"left": np.ones((rows, inner), np.float32)}
    return lambda: session.run(None, feeds)
