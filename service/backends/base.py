"""The interface of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ranking.encoding.request_batch import RequestBatch

Precision = Literal["float32", "bfloat16", "float16"]

Scores = npt.NDArray[np.float32]
"""[candidates, tasks]."""


class Backend(Protocol):
    """Scores candidates of one version of a model; called by one thread at a time.

    Attributes:
        backend: its name among the settings.
        precision: of its products; at least float32 where this says so.
    """

    backend: str
    precision: Precision

    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Scores [candidates, tasks] float32; experts and towers of other tasks do not run."""
        ...
