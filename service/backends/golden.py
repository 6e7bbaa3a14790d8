"""Whether a runtime gives the scores that the bundle says it must give, on this machine, before it serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ranking.artifacts import bundle
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.request_batch import SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Backend

HALF_TOLERANCE = 0.02
"""As ``bundle.TOLERANCE``, of products in bfloat16 or float16."""


def require_golden(runtime: Backend, ranker: FrozenRanker, folder: Path) -> EncodedBatch:
    """Scores the bundle's golden rows.

    Returns:
        The rows, encoded.

    Raises:
        BundleError: the rows cannot be read, or a score differs by more than the precision allows; names the task.
    """
    rows, expected = bundle.golden(folder, ranker.schema)
    with bundle.as_bundle_error(folder):
        inputs = ranker.encoder.encode(rows)
    halves = SharedItemSplitter(ranker.encoder).split(inputs, np.arange(rows.num_rows))
    tolerance = bundle.TOLERANCE if runtime.precision == "float32" else HALF_TOLERANCE
    found = runtime.scores(halves, ranker.schema.task_names)
    otherwise = f"{folder}: golden rows score differently on {runtime.backend}"
    bundle.require_golden(found, expected, otherwise, tolerance, "; choose another backend")
    return inputs
