"""Sources of the commands of the loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ranking.served_log.schema import SHOWN


@dataclass(frozen=True)
class LoopSources:
    """The served log and feedback of a model.

    Attributes:
        served: folder of the served log.
        feedback: folder of feedback.
        repository: repository of the versions; None for the one that the served log names.
        model: model whose requests to read; None for the only one.
        shown: name of the label that marks the candidates that were shown.
    """

    served: Path
    feedback: Path
    repository: Path | None = None
    model: str | None = None
    shown: str = SHOWN
