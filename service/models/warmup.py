"""First times are slow: memory is taken, sessions and graphs are made. They happen here, before a version serves."""

from __future__ import annotations

import numpy as np

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner
from service.backends.base import Backend
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder

OWNERS: tuple[Owner, ...] = ("user", "context", "item")


def warm_up(
    ranker: FrozenRanker, encoder: RequestEncoder, runtime: Backend, golden: EncodedBatch, max_rows: int
) -> None:
    """Runs what requests will: every size of batch, of one request and of several, and the likeliest sets of tasks.

    Args:
        ranker: the version.
        encoder: of its requests.
        runtime: that executes it.
        golden: rows to run.
        max_rows: of a batch.
    """
    encoder(FeatureRequest(dict.fromkeys(OWNERS, RawFeatures(None, {})), [max_rows]))
    if not len(golden):
        return
    sides = SharedItemSplitter(ranker.encoder)
    inputs = golden.take(np.arange(max_rows) % len(golden))
    several = sides.split(inputs, np.arange(max_rows))
    one = RequestBatch(several.shared.take(np.zeros(1, np.int64)), several.items, np.zeros_like(several.request))
    tasks = tuple(sorted(ranker.schema.task_names))
    for rows in _sizes(max_rows):
        runtime.scores(one.slice(0, rows), tasks)
        runtime.scores(sides.split(inputs.take(np.arange(rows)), np.arange(rows)), tasks)
    for some in {tuple(sorted(ranker.objective)), *((task,) for task in tasks)} - {()}:
        runtime.scores(one, some)


def _sizes(most: int) -> list[int]:
    """1, 2, 4 … and the most."""
    return [*(2**power for power in range((most - 1).bit_length())), most]
