"""Time the bundle, its dense variants and the roofline in one process.

    python -m benchmarks.serving.engines BUNDLE SIZES TURNS SECONDS THREADS

Prints the same JSON as ``pipelines.bench.engines``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.serving import roofline
from benchmarks.serving.dense_model import dense_model, dense_ranker, without_split
from benchmarks.serving.dense_onnx import DenseOnnxBackend
from pipelines.bench.engines import Contender, backend_contenders, make_calls, print_measurement
from pipelines.bench.interleave import interleave
from pipelines.bench.requests import Requests
from ranking.artifacts import bundle
from ranking.encoding.request_batch import SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import to_probabilities
from ranking.frozen.ranker import FrozenRanker
from service.backends.select import select_backend


def measure(folder: Path, sizes: Sequence[int], turns: int, seconds: float, threads: int) -> dict[str, Any]:
    """Time all contenders; see ``pipelines.bench.engines.measure``."""
    torch.set_num_threads(threads)
    ranker = bundle.load(folder)
    requests = Requests(ranker, folder)
    dense_eager, *others = dense_contenders(ranker, threads)
    contenders = [dense_eager, *backend_contenders(ranker, threads), *others]
    results = {}
    for size in sizes:
        calls = make_calls(requests, contenders, size)
        medians = interleave(calls | roofline.calls(ranker, size), turns, seconds)
        results[str(size)] = {name: medians[name] for name in calls} | roofline.bounds(ranker, size, medians)
    return {"sizes": results}


def dense_contenders(ranker: FrozenRanker, threads: int) -> list[Contender]:
    """Return the dense model in PyTorch and in ONNX Runtime, and the bundle without the user/item split."""
    splitter = SharedItemSplitter(ranker.encoder)
    unsplit = without_split(ranker)
    unsplit_splitter = SharedItemSplitter(unsplit.encoder)
    return [
        Contender("dense, eager", _eager(ranker), lambda batch: TorchBatch.from_numpy(splitter.merge(batch))),
        Contender("dense, onnxruntime", DenseOnnxBackend(dense_ranker(ranker), threads).scores),
        Contender(
            "no split, onnxruntime",
            select_backend(unsplit, "onnxruntime", threads).scores,
            lambda batch: unsplit_splitter.split(splitter.merge(batch), batch.request_index),
        ),
    ]


def _eager(ranker: FrozenRanker) -> Callable[[Any, Sequence[str]], object]:
    """Return the model as trained, in float32 and eval mode. It always computes all tasks."""
    model, tasks, names = dense_model(ranker), ranker.schema.tasks, ranker.schema.task_names

    @torch.inference_mode()
    def score(inputs: Any, _: Sequence[str]) -> object:
        return to_probabilities(ranker.calibration(model(inputs).numpy(), names), tasks)

    return score


if __name__ == "__main__":
    print_measurement(measure)
