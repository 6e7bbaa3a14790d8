"""Verifies on this machine that a backend reproduces the golden scores of a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ranking.artifacts import bundle
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.request_batch import SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Backend

HALF_PRECISION_TOLERANCE = 0.02
"""Largest difference of scores in bfloat16 or float16, absolute and relative; see ``bundle.TOLERANCE`` for float32."""


def verify_golden_scores(backend: Backend, ranker: FrozenRanker, folder: Path) -> EncodedBatch:
    """Score the golden rows of a bundle and compare the scores.

    Returns:
        The golden rows, encoded.

    Raises:
        BundleError: the rows cannot be read, or a score differs by more than the precision allows; names the task.
    """
    rows, expected = bundle.read_golden(folder, ranker.schema)
    with bundle.as_bundle_error(folder):
        inputs = ranker.encoder.encode(rows)
    batch = SharedItemSplitter(ranker.encoder).split(inputs, np.arange(rows.num_rows))
    scores = backend.scores(batch, ranker.schema.task_names)
    context = f"{folder}: golden rows score differently on {backend.name}"
    tolerance = bundle.TOLERANCE if backend.precision == "float32" else HALF_PRECISION_TOLERANCE
    bundle.check_golden_scores(scores, expected, context, tolerance, "; choose another backend")
    return inputs
