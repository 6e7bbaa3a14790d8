"""The registry and reconciler of a repository, without HTTP."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from ranking.artifacts import repository
from ranking.artifacts.bundle import write_bundle
from ranking.artifacts.release import parse_release
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.frozen.freeze import freeze
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema
from ranking.settings.gate import SoftmaxConfig
from ranking.settings.model import ModelConfig
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.conftest import Once
from tests.service.conftest import publish_two

SMALL_SCHEMA = {
    "name": "feed",
    "features": [
        {"name": "item_id", "kind": "categorical", "owner": "item", "dim": 2},
        {"name": "price", "kind": "numeric", "owner": "item"},
    ],
    "tasks": [{"name": "click", "kind": "binary"}],
}
"""A schema whose bundle has a feature table and few files."""


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


def write_small_bundle(folder: Path, seed: int = 0) -> None:
    """Write a bundle of an untrained model for items "v0" to "v9"."""
    schema = Schema.model_validate(SMALL_SCHEMA)
    items = pa.table({"item_id": [f"v{i}" for i in range(10)], "price": [float(i) for i in range(10)]})
    tables: dict[Owner, FeatureTable] = {"item": FeatureTable(items, "item_id")}
    rows = fill_features(items.select(["item_id"]), schema, tables)
    fitter = EncoderFitter(schema)
    fitter.add(rows)
    encoder = fitter.encoder()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        embeddings = Embeddings(schema, {name: mapping.size for name, mapping in encoder.id_mappings.items()})
        config = ModelConfig(experts=2, expert_layers=(2,), tower_layers=(2,), gate=SoftmaxConfig(kind="softmax"))
        model = MMoE(config, len(schema.tasks), embeddings, DenseInputs(encoder.dense_size, encoder.bins))
    write_bundle(freeze(model.eval(), encoder, tables, {"click": 1.0}), rows, folder)


@pytest.fixture(scope="session")
def small_bundle(once: Once) -> Path:
    """A bundle with few files; read only."""
    return once("small bundle", write_small_bundle)


@pytest.fixture(scope="session")
def both_small(small_bundle: Path, once: Once) -> Path:
    """A repository with small bundles of different weights as versions 1 (current) and 2 of "feed"; read only."""
    candidate = once("small candidate", partial(write_small_bundle, seed=1))
    return once("both small", partial(publish_two, small_bundle, candidate))


@pytest.fixture
def small_repo(both_small: Path, tmp_path: Path) -> Path:
    """A writable copy of the repository with both small versions."""
    return shutil.copytree(both_small, tmp_path / "repository")
