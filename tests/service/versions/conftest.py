"""A repository with two versions of one model that score differently, and what makes versions served."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines import config as configs
from pipelines.freezing import freeze_run
from pipelines.publishing import publish
from pipelines.releasing import change
from pipelines.train import train
from service.metrics import Metrics
from service.settings import Settings
from service.versions.models import Models
from service.versions.reconciling import Reconciler
from tests.conftest import SMALL


@pytest.fixture(scope="session")
def candidate(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the same features and tasks as the shared one, whose scores are others; read only."""
    folder = tmp_path_factory.mktemp("candidate")
    trained = train(configs.load(logs / "ranker.toml", [*SMALL, "training.seed=1"]), folder / "run")
    freeze_run(trained.path, folder / "bundle")
    return folder / "bundle"


@pytest.fixture(scope="session")
def both(bundle: Path, candidate: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of both as versions 1 and 2 of "feed", 1 being current; read only."""
    folder = tmp_path_factory.mktemp("both")
    publish(bundle, folder)
    publish(candidate, folder)
    change(folder, "feed", {"version": 1})
    return folder


@pytest.fixture
def repo(both: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(both, tmp_path / "repository")


@dataclass(frozen=True)
class Service:
    """What makes versions of a repository served, without HTTP."""

    path: Path
    models: Models
    reconciler: Reconciler
    metrics: Metrics

    def release(self, **changes: Any) -> None:
        """Says what is to be served of "feed", and looks."""
        change(self.path, "feed", changes)
        self.reconciler.look()

    @property
    def roles(self) -> dict[str, str]:
        """Role → version of "feed"."""
        lineup = self.models.lineup("feed")
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
        models = Models(settings.default_model)
        service = Service(path, models, Reconciler(settings, models, metrics), metrics)
        service.reconciler.first()
        return service

    return start
