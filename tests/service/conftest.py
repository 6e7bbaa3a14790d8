"""A client of a service of the shared repository, and a repository with two versions of different scores."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import ranking
from pipelines.config.config import load_config
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from pipelines.jobs.train import train
from ranking import FrozenRanker
from service.app import create_app
from service.settings import Settings
from tests.conftest import SMALL, Once

TEST_SECONDS = 30.0
"""Timeout of an asynchronous test."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_SECONDS))
    return True


@pytest.fixture(scope="session")
def ranker(repository: Path) -> FrozenRanker:
    return ranking.load(repository / "feed" / "1")


@pytest.fixture(scope="session")
def client(repository: Path) -> Iterator[TestClient]:
    """A client of a service of the shared repository, which does not poll the repository while other tests run."""
    limits = {"max_candidates": 200, "max_body_bytes": 100_000}
    app = create_app(Settings(repository=repository, poll_seconds=86_400, **limits))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def document(client: TestClient) -> dict[str, Any]:
    """The OpenAPI document."""
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


@pytest.fixture
def request_body() -> dict[str, Any]:
    """A request whose features all come from the request or the lookup tables."""
    return {
        "request_id": "r-1",
        "user": {"id": "u3", "features": {"age": 31}},
        "context": {"surface": "home", "hour": 9},
        "items": [{"id": f"v{i}"} for i in range(12)],
    }


@pytest.fixture(scope="session")
def candidate(logs: Path, once: Once) -> Path:
    """A bundle with the schema of the shared one but different scores; read only."""
    config = load_config(logs / "ranker.toml", [*SMALL, "training.seed=1"])
    run = once("candidate run", lambda folder: train(config, folder))
    return once("candidate", lambda folder: freeze_run(run, folder))


def publish_two(first: Path, second: Path, folder: Path) -> None:
    """Publish two bundles as versions 1 (current) and 2 of "feed"."""
    publish(first, folder)
    publish(second, folder)
    change_release(folder, "feed", {"version": 1})


@pytest.fixture(scope="session")
def both(bundle: Path, candidate: Path, once: Once) -> Path:
    """A repository with both bundles as versions 1 (current) and 2 of "feed"; read only."""
    return once("both", partial(publish_two, bundle, candidate))


@pytest.fixture
def repo(both: Path, tmp_path: Path) -> Path:
    """A writable copy of the repository with both versions."""
    return shutil.copytree(both, tmp_path / "repository")
