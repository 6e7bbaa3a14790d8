"""The registry and reconciler of a repository, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ranking.artifacts import repository
from ranking.artifacts.release import parse_release
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
        """Change the release of "feed" without verifying its versions, and poll."""
        previous = repository.read_release(self.path, "feed")
        if "version" in changes:
            previous = previous.promoted(changes["version"])
        release = parse_release({**previous.model_dump(), **changes}, "release")
        repository.write_release(self.path, "feed", release)
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
def unloaded() -> Callable[..., Service]:
    """Function that creates the service of a repository, whose models are not loaded yet."""

    def create(path: Path, **options: Any) -> Service:
        settings, metrics = Settings(repository=path, threads=1, **options), Metrics()
        models = ModelRegistry(settings.default_model)
        return Service(path, models, Reconciler(settings, models, metrics), metrics)

    return create


@pytest.fixture
def serve(unloaded: Callable[..., Service]) -> Callable[..., Service]:
    """Function that loads a repository for the first time."""

    def load(path: Path, **options: Any) -> Service:
        service = unloaded(path, **options)
        service.reconciler.load_initial()
        return service

    return load
