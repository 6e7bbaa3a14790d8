"""From what towers give to what users see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ranking.calibration import Floats
from ranking.schema import Task


def scores(outputs: Floats, tasks: Sequence[Task]) -> npt.NDArray[np.float64]:
    """Probabilities of binary tasks, (transformed) numbers of regressions [batch, tasks].

    Args:
        outputs: calibrated logits and numbers [batch, tasks].
        tasks: kinds, in the order of the columns.
    """
    found = outputs.astype(np.float64)
    binary = [task.kind == "binary" for task in tasks]
    with np.errstate(over="ignore"):  # of a probability that is 0
        found[:, binary] = 1.0 / (1.0 + np.exp(-found[:, binary]))
    return found
