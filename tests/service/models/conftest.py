"""What makes versions of a repository served, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines.jobs.release import change_release
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics


@dataclass(frozen=True)
class Service:
    """What makes versions of a repository served, without HTTP."""

    path: Path
    models: ModelRegistry
    reconciler: Reconciler
    metrics: Metrics

    def release(self, **changes: Any) -> None:
        """Says what is to be served of "feed", and looks."""
        change_release(self.path, "feed", changes)
        self.reconciler.poll()

    @property
    def roles(self) -> dict[str, str]:
        """Role → version of "feed"."""
        lineup = self.models.routing("feed")
        return {} if lineup is None else {role: served.version for role, served in lineup.roles}

    def metric(self, line: str) -> float:
        """The value of a sample, such as 'ranker_experts{model="feed"}'."""
        lines = self.metrics.exposition().decode().splitlines()
        return float(next((text.rpartition(" ")[2] for text in lines if text.rpartition(" ")[0] == line), "nan"))


@pytest.fixture
def serve() -> Callable[[Path], Service]:
    """Looks at a repository for the first time."""

    def start(path: Path, **options: Any) -> Service:
        settings, metrics = Settings(repository=path, threads=1, **options), Metrics()
        models = ModelRegistry(settings.default_model)
        service = Service(path, models, Reconciler(settings, models, metrics), metrics)
        service.reconciler.first()
        return service

    return start
