"""A small bundle of the benchmark's reference model, as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.serving.reference import write_reference
from ranking.artifacts import bundle
from ranking.frozen.ranker import FrozenRanker

ITEMS, USERS = 300, 40


@pytest.fixture(scope="session")
def reference(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Return the bundle; read only."""
    return once("reference bundle", lambda folder: write_reference(folder, ITEMS, USERS))


@pytest.fixture(scope="session")
def ranker(reference: Path) -> FrozenRanker:
    """Return the loaded bundle."""
    return bundle.load(reference)
