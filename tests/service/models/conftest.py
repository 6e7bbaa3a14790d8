"""The registry and reconciler of a repository, without HTTP."""

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
    """The registry, reconciler and metrics of a repository."""

    path: Path
    models: ModelRegistry
    reconciler: Reconciler
    metrics: Metrics

    def release(self, **changes: Any) -> None:
        """Change the release of "feed" and poll."""
        change_release(self.path, "feed", changes)
        self.reconciler.poll()

    @property
    def roles(self) -> dict[str, str]:
        """Role → version of "feed"."""
        routing = self.models.routing("feed")
        return {} if routing is None else {role: model.version for role, model in routing.roles}

    def metric(self, sample: str) -> float:
        """Return the value of a sample, such as 'ranker_experts{model="feed"}', or NaN if there is none."""
        lines = self.metrics.exposition().decode().splitlines()
        return float(next((line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == sample), "nan"))


@pytest.fixture
def serve() -> Callable[..., Service]:
    """Function that loads a repository for the first time."""

    def load(path: Path, **options: Any) -> Service:
        settings, metrics = Settings(repository=path, threads=1, **options), Metrics()
        models = ModelRegistry(settings.default_model)
        service = Service(path, models, Reconciler(settings, models, metrics), metrics)
        service.reconciler.load_initial()
        return service

    return load
