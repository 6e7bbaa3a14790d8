"""Whether a runtime gives the scores that the bundle says it must give, on this machine, before it serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ranking import bundle
from ranking.frozen import FrozenRanker
from ranking.halves import Sides
from ranking.inputs import Inputs
from service.engine.runtimes.base import Runtime

HALF_TOLERANCE = 0.02
"""As ``bundle.TOLERANCE``, of products in bfloat16 or float16."""


def require_golden(runtime: Runtime, ranker: FrozenRanker, folder: Path) -> Inputs:
    """Scores the bundle's golden rows.

    Returns:
        The rows, encoded.

    Raises:
        BundleError: the rows cannot be read, or a score differs by more than the precision allows; names the task.
    """
    rows, expected = bundle.golden(folder, ranker.schema)
    with bundle.holding_together(folder):
        inputs = ranker.encoder.encode(rows)
    halves = Sides(ranker.encoder).split(inputs, np.arange(rows.num_rows))
    tolerance = bundle.TOLERANCE if runtime.precision == "float32" else HALF_TOLERANCE
    found = runtime.scores(halves, ranker.schema.task_names)
    otherwise = f"{folder}: golden rows score differently on {runtime.backend}"
    bundle.require_golden(found, expected, otherwise, tolerance, "; choose another backend")
    return inputs
