"""Time the backends in one process: the input is an encoded request, the output its scores.

    python -m pipelines.bench.engines BUNDLE SIZES TURNS SECONDS THREADS

SIZES are comma-separated numbers of candidates per request. Prints seconds per call by size, contender and turn.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from pipelines.bench.interleave import interleave
from pipelines.bench.requests import DISTINCT_REQUESTS, Requests
from ranking.artifacts import bundle
from ranking.encoding.request_batch import RequestBatch
from ranking.errors import RankerError
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


def measure(folder: Path, sizes: Sequence[int], turns: int, seconds: float, threads: int) -> dict[str, Any]:
    """Time the bundle on every available backend, one task alone, and the lookup of item ids.

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
    requests, contenders = Requests(ranker, folder), backend_contenders(ranker, threads)
    return {"sizes": {str(size): interleave(make_calls(requests, contenders, size), turns, seconds) for size in sizes}}


def backend_contenders(ranker: FrozenRanker, threads: int) -> list[Contender]:
    """Return a contender for each available backend, and one that scores a single task."""
    contenders = []
    for backend in get_args(BackendName):
        try:
            if backend != "auto":
                contenders.append(Contender(f"frozen, {backend}", select_backend(ranker, backend, threads).scores))
        except RankerError:  # The machine or the bundle does not support this backend.
            continue
    if ranker.gate is None:
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


def print_measurement(measurement: Callable[..., dict[str, Any]]) -> None:
    """Run a measurement with the command-line arguments and print its result as JSON."""
    folder, sizes, turns, seconds, threads = sys.argv[1:]
    candidates = [int(size) for size in sizes.split(",")]
    print(json.dumps(measurement(Path(folder), candidates, int(turns), float(seconds), int(threads))))


if __name__ == "__main__":
    print_measurement(measure)
