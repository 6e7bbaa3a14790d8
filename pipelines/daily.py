"""``ranker daily``: a new day's log → a warm start → the gate → a bundle → the version that is served.

Each day has a folder among the runs. What it ends with stands in its ``daily.json``; what is missing there, another start
of the same day goes on with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.config import Config, LogsConfig
from pipelines.evaluation.comparing import compare
from pipelines.evaluation.opening import open_sources
from pipelines.freezing import freeze_run
from pipelines.logs.places import shown
from pipelines.logs.reader import LogReader, load_tables
from pipelines.logs.splits import split_bounds
from pipelines.progress import say
from pipelines.promotion import Loss, losses
from pipelines.publishing import publish
from pipelines.run_folder import RunFolder
from pipelines.train import train
from pipelines.training.warm_start import WarmStart
from ranking import repository
from ranking.bundle import SUMS
from ranking.errors import LogError, RefusedError, UsageError
from ranking.files import write_json

BUNDLE = "bundle"
RECORD = "daily.json"


@dataclass(frozen=True)
class Day:
    """One day's folder.

    Attributes:
        path: ``RUNS/2026-01-11``; the run is in it, its bundle, and what became of it.
    """

    path: Path

    @property
    def bundle(self) -> Path:
        """The frozen run."""
        return self.path / BUNDLE

    @property
    def record(self) -> dict[str, Any]:
        """What became of it; empty before the end."""
        file = self.path / RECORD
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found


def daily(
    config: Config,
    runs: Path,
    repo: Path,
    day: date,
    *,
    margin: float,
    fresh: bool = False,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains on all days before ``day`` that the served model has not seen, judges on ``day`` and publishes.

    Args:
        config: its splits say how long validation is, and where the first training begins.
        runs: folder of a run a day.
        repo: the repository.
        day: the newest day of the log; nothing trains on it.
        margin: what a measure of a task may lose against the served model, as a share of its value there.
        fresh: train from the start, not from the run that is served.
        command: what was given on the command line.

    Returns:
        What ``daily.json`` holds: ``day``, ``from`` (the earlier day, or None), ``model``, ``against`` (the version it
        was measured against, or None), ``losses`` (none if published) and ``version`` (None if refused).

    Raises:
        RefusedError: the model is worse than the served one by more than the margin; nothing is published.
        LogError: the log has no row of the day.
        RankerError: a step failed; says which and why.
    """
```
