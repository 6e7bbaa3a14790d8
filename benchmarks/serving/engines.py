"""Time the bundle on each backend, its dense variants and the roofline in one process.

    python -m benchmarks.serving.engines BUNDLE SIZES TURNS SECONDS THREADS

The input is an encoded request, the output its scores. SIZES are comma-separated numbers of candidates per request.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.serving import roofline
from benchmarks.serving.dense_model import dense_model, dense_ranker, without_split
from benchmarks.serving.dense_onnx import DenseOnnxBackend
from benchmarks.serving.interleave import interleave
from benchmarks.serving.sizes import ServingSizes
from pipelines.bench.harness import Harness
from pipelines.bench.report import caption_of_turns
from pipelines.bench.requests import DISTINCT_REQUESTS, Requests
from pipelines.bench.tables import cores, section, three_digits
from ranking.artifacts import bundle
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import RankerError
from ranking.frozen.calibration import to_probabilities
from ranking.frozen.ranker import FrozenRanker
from ranking.lookup.feature_index import FeatureIndex
from service.backends.base import BackendName
from service.backends.select import select_backend

LOOK_UP = "look-up of ids"
LOOK_UP_LISTS = 200
"""Number of distinct lists of ids for the lookup, so that the caches do not hold all of their rows."""


@dataclass(frozen=True)
class Contender:
    """A way to score a request.

    Attributes:
        name: row of the table.
        score: (prepared request, task names) → scores.
        prepare: converts a request into the input of ``score``; not timed.
        tasks: number of requested tasks, in the order of the schema; None for all tasks.
    """

    name: str
    score: Callable[[Any, Sequence[str]], object]
    prepare: Callable[[RequestBatch], Any] = lambda batch: batch
    tasks: int | None = None

    def call(self, requests: Sequence[RequestBatch], tasks: Sequence[str]) -> Callable[[], object]:
        """Return a function that scores the next of the requests at each call."""
        prepared, requested = itertools.cycle([self.prepare(batch) for batch in requests]), tasks[: self.tasks]
        return lambda: self.score(next(prepared), requested)


def measure_engines(harness: Harness) -> dict[str, Any]:
    """Run this module on the measured cores."""
    sizes = ServingSizes.of(harness)
    candidates = ",".join(map(str, harness.candidates))
    module = "benchmarks.serving.engines"
    return harness.run_module(module, harness.folder, candidates, sizes.turns, sizes.call_seconds, harness.threads)


def measure(folder: Path, sizes: Sequence[int], turns: int, seconds: float, threads: int) -> dict[str, Any]:
    """Time all contenders, and the lookup of item ids.

    Args:
        folder: the bundle.
        sizes: numbers of candidates per request.
        turns: turns of each contender.
        seconds: duration of a turn.
        threads: threads of each contender.

    Returns:
        ``sizes``: candidates → contender → seconds per call, one value per turn.
    """
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


def backend_contenders(ranker: FrozenRanker, threads: int) -> list[Contender]:
    """Return a contender for each available backend, and one that scores a single task."""
    contenders = []
    for backend in get_args(BackendName):
        try:
            if backend != "auto":
                contenders.append(Contender(f"frozen, {backend}", select_backend(ranker, backend, threads).scores))
        except RankerError:  # The machine or the bundle does not support this backend.
            continue
    if not ranker.per_example:
        one_task = select_backend(ranker, "onnxruntime", threads).scores
        contenders.append(Contender("one task, onnxruntime", one_task, tasks=1))
    return contenders


def make_calls(requests: Requests, contenders: Sequence[Contender], candidates: int) -> dict[str, Callable[[], object]]:
    """Return name → function to time: each contender, and the lookup of item ids if the bundle has an item table."""
    ranker = requests.ranker
    batches = [requests.encoded(candidates) for _ in range(DISTINCT_REQUESTS)]
    calls = {contender.name: contender.call(batches, ranker.schema.task_names) for contender in contenders}
    if "item" in ranker.encoded:
        id_lists = [requests.item_ids(candidates) for _ in range(LOOK_UP_LISTS)]
        calls[LOOK_UP] = _look_up(ranker.encoded["item"], id_lists)
    return calls


def _look_up(index: FeatureIndex, id_lists: Sequence[list[Any]]) -> Callable[[], object]:
    ids = itertools.cycle(id_lists)
    return lambda: index.take(index.rows(next(ids)))


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


def format_engines(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """Format the table of the part."""
    sizes: dict[str, dict[str, list[float]]] = measured["sizes"]
    names, turns = list(next(iter(sizes.values()))), next(iter(next(iter(sizes.values())).values()))
    rows = [
        (name, *(three_digits(statistics.median(seconds[name]) * 1000) for seconds in sizes.values())) for name in names
    ]
    return section(
        "Within one process",
        f"{cores(about['threads'])}. {caption_of_turns(turns)} "
        "Milliseconds from the encoded arrays of one request to its scores, by candidates.",
        ("", *sizes),
        rows,
    )


def main(folder: str, sizes: str, turns: str, seconds: str, threads: str) -> None:
    """Print the measurement as JSON; ``sizes`` are separated by commas."""
    candidates = [int(size) for size in sizes.split(",")]
    print(json.dumps(measure(Path(folder), candidates, int(turns), float(seconds), int(threads))))


if __name__ == "__main__":
    main(*sys.argv[1:])
