"""A client of the service over the shared repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import ranking
from ranking import FrozenRanker
from service.app import create_app
from service.settings import Settings


@pytest.fixture(scope="session")
def ranker(repository: Path) -> FrozenRanker:
    return ranking.load(repository / "feed" / "1")


@pytest.fixture(scope="session")
def client(repository: Path) -> Iterator[TestClient]:
    app = create_app(Settings(repository=repository, max_candidates=200, max_body_bytes=100_000))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def request_body() -> dict[str, Any]:
    """A request whose features all come from the request or the look-up tables."""
    return {
        "request_id": "r-1",
        "user": {"id": "u3", "features": {"age": 31}},
        "context": {"surface": "home", "hour": 9},
        "items": [{"id": f"v{i}"} for i in range(12)],
    }
