"""Contenders within one process: a request, encoded, in; scores out.

    python -m pipelines.bench.engines BUNDLE SIZES TURNS SECONDS THREADS

SIZES are candidates of one request, with commas between them. Prints seconds a call by size, contender and turn.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines.bench import roofline
from pipelines.bench.requests import DIFFERENT, Requests
from pipelines.bench.turns import in_turns
from ranking.artifacts import bundle
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import RankerError
from ranking.frozen.calibration import to_probabilities
from ranking.frozen.ranker import FrozenRanker
from ranking.lookup.feature_index import FeatureIndex
from service.backends.select import BACKENDS, select_backend

LOOK_UP = "look-up of ids"
LISTS = 200
"""Lists of ids that are looked up by turns, so that not all of them are in a cache."""


@dataclass(frozen=True)
class Contender:
    """Something that scores.

    Attributes:
        name: of the table's row.
        score: what ``prepare`` made, names of tasks → scores.
        prepare: brings a request into the form that it takes; outside of the clock.
        tasks: how many are asked for, in the schema's order; None for all.
    """

    name: str
    score: Callable[[Any, Sequence[str]], object]
    prepare: Callable[[RequestBatch], Any] = lambda halves: halves
    tasks: int | None = None

    def call(self, requests: Sequence[RequestBatch], tasks: Sequence[str]) -> Callable[[], object]:
        """Scores the next of the requests."""
        prepared, asked = itertools.cycle([self.prepare(halves) for halves in requests]), tasks[: self.tasks]
        return lambda: self.score(next(prepared), asked)


def measure(folder: Path, sizes: Sequence[int], turns: int, seconds: float, threads: int) -> dict[str, Any]:
    """Seconds a call.

    Args:
        folder: the bundle.
        sizes: candidates of one request.
        turns: of each contender.
        seconds: of each turn.
        threads: of each contender.

    Returns:
        ``sizes``: candidates → contender, look-up or roofline → seconds in each turn.
    """
    torch.set_num_threads(threads)
    ranker = bundle.load(folder)
    requests, tasks, found = Requests(ranker, folder), ranker.schema.task_names, {}
    contenders = list(_contenders(ranker, threads))
    for size in sizes:
        drawn = [requests.halves(size) for _ in range(DIFFERENT)]
        calls = {one.name: one.call(drawn, tasks) for one in contenders}
        if "item" in ranker.encoded:
            calls[LOOK_UP] = _look_up(ranker.encoded["item"], [requests.item_ids(size) for _ in range(LISTS)])
        measured = in_turns(calls | roofline.calls(ranker, size), turns, seconds)
        found[str(size)] = {name: measured[name] for name in calls} | roofline.bounds(ranker, size, measured)
    return {"sizes": found}


def _contenders(ranker: FrozenRanker, threads: int) -> Iterator[Contender]:
    from pipelines.bench.dense import dense_ranker, unsplit  # needs what trains
    from pipelines.bench.dense_body import DenseRuntime

    sides = SharedItemSplitter(ranker.encoder)
    if ranker.gate is None:
        yield Contender("dense, eager", _eager(ranker), lambda halves: TorchBatch.from_numpy(sides.merge(halves)))
    for backend in BACKENDS:
        try:
            if backend != "auto":
                yield Contender(f"frozen, {backend}", select_backend(ranker, backend, threads).scores)
        except RankerError:  # this machine or this bundle lacks what the backend needs
            continue
    if ranker.body is None:
        return
    yield Contender("dense, onnxruntime", DenseRuntime(dense_ranker(ranker), threads).scores)
    yield Contender("one task, onnxruntime", select_backend(ranker, "onnxruntime", threads).scores, tasks=1)
    whole = unsplit(ranker)
    of_items = SharedItemSplitter(whole.encoder)
    yield Contender(
        "no split, onnxruntime",
        select_backend(whole, "onnxruntime", threads).scores,
        lambda halves: of_items.split(sides.merge(halves), halves.request),
    )


def _look_up(table: FeatureIndex, lists: Sequence[list[Any]]) -> Callable[[], object]:
    following = itertools.cycle(lists)
    return lambda: table.take(table.rows(next(following)))


def _eager(ranker: FrozenRanker) -> Callable[[Any, Sequence[str]], object]:
    """The model as it was trained, in float32 and eval mode; it has no way to leave a task out."""
    from pipelines.bench.dense import dense_model

    model, tasks, names = dense_model(ranker), ranker.schema.tasks, ranker.schema.task_names

    @torch.inference_mode()
    def score(inputs: Any, _: Sequence[str]) -> object:
        return to_probabilities(ranker.calibration(model(inputs).numpy(), names), tasks)

    return score


if __name__ == "__main__":
    path, candidates, turns_, seconds_, threads_ = sys.argv[1:]
    asked_ = [int(size) for size in candidates.split(",")]
    print(json.dumps(measure(Path(path), asked_, int(turns_), float(seconds_), int(threads_))))
