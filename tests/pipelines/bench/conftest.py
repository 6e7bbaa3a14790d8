"""A small reference bundle that the benchmark's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.bench.reference import write_reference
from ranking.artifacts import bundle
from ranking.frozen.ranker import FrozenRanker

ITEMS, USERS = 300, 40


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle; read only."""
    folder = tmp_path_factory.mktemp("reference") / "bundle"
    write_reference(folder, ITEMS, USERS)
    return folder


@pytest.fixture(scope="session")
def ranker(reference: Path) -> FrozenRanker:
    """The bundle, loaded."""
    return bundle.load(reference)
