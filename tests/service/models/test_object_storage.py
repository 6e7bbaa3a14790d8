"""A service whose repository is a copy of one in object storage, with a real S3 server."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts import object_store, repository
from ranking.artifacts.object_store import ObjectStore
from ranking.artifacts.remote_repository import RemoteRepository
from ranking.errors import BundleError
from service.app import create_app
from service.models.loader import check_repository
from service.settings import Settings
from tests.service.models.conftest import Service

Serve = Callable[..., Service]
READ = "ranker_repository_read_timestamp_seconds"


@pytest.fixture
def source(small_repo: Path, location: str) -> Path:
    """A repository with versions 1 (current) and 2 of "feed", which is pushed."""
    RemoteRepository(location, print).push(small_repo)
    return small_repo


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def push(source: Path, location: str, **changes: Any) -> None:
    change_release(source, "feed", changes)
    RemoteRepository(location, print).push(source)


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(object_store, "MAX_RETRIES", 0)


def test_service_serves_releases_from_object_storage(source: Path, cache: Path, location: str, serve: Serve) -> None:
    service = serve(cache, remote=location)
    assert service.roles == {"current": "1"}
    assert repository.list_versions(cache, "feed") == [1]
    push(source, location, version=2)
    service.reconciler.poll()
    assert service.roles == {"current": "2"}
    push(source, location, version=1, shadow=2)
    service.reconciler.poll()
    assert service.roles == {"current": "1", "shadow": "2"}


def test_versions_that_are_no_longer_needed_are_removed_from_the_copy(
    source: Path, cache: Path, location: str, serve: Serve
) -> None:
    service = serve(cache, remote=location)
    push(source, location, shadow=2)
    service.reconciler.poll()
    push(source, location, shadow=None)
    service.reconciler.poll()
    assert repository.list_versions(cache, "feed") == [1]
    assert service.roles == {"current": "1"}


def test_service_continues_while_object_storage_is_unreachable(
    source: Path, cache: Path, location: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve(cache, remote=location)
    before = service.metric(READ)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "folders", lambda *_: (_ for _ in ()).throw(BundleError("s3://shop is away")))
        with pytest.raises(BundleError, match="s3://shop is away"):
            service.reconciler.poll()
    assert service.roles == {"current": "1"}
    assert service.metric(READ) == before  # An alert reports that the service misses releases.
    service.reconciler.poll()
    assert service.metric(READ) > before


def test_service_starts_with_its_copy_while_object_storage_is_unreachable(
    source: Path,
    cache: Path,
    location: str,
    serve: Serve,
    unloaded: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve(cache, remote=location)
    unreachable(monkeypatch)
    check_repository(Settings(repository=cache, remote=location))
    assert f"serving the copy in {cache}" in caplog.text
    service = unloaded(cache, remote=location)
    with pytest.raises(BundleError, match=r"cannot be accessed"):
        service.reconciler.poll()
    assert service.roles == {"current": "1"}
    assert service.models.ready


def test_service_serves_its_copy_before_newer_versions_are_copied(
    source: Path, cache: Path, location: str, serve: Serve, unloaded: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(cache, remote=location)
    push(source, location, version=2)
    service, download = unloaded(cache, remote=location), ObjectStore.download
    roles: list[dict[str, str]] = []

    def record(self: ObjectStore, path: str, file: Path) -> None:
        roles.append(service.roles)
        download(self, path, file)

    monkeypatch.setattr(ObjectStore, "download", record)
    service.reconciler.poll()
    assert roles[0] == {"current": "1"}
    assert service.roles == {"current": "2"}


def test_service_without_a_copy_does_not_start_while_object_storage_is_unreachable(
    source: Path, cache: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable(monkeypatch)
    with pytest.raises(BundleError, match=rf"^{location} cannot be accessed"):
        check_repository(Settings(repository=cache, remote=location))


def test_service_does_not_start_with_an_empty_location_or_without_its_default_model(
    small_repo: Path, cache: Path, location: str
) -> None:
    with pytest.raises(BundleError, match=rf"^{location} holds no published model; publish one with 'ranker push'$"):
        check_repository(Settings(repository=cache, remote=location))
    RemoteRepository(location, print).push(small_repo)
    with pytest.raises(BundleError, match=rf"^{location} has no model 'shop': it has feed$"):
        check_repository(Settings(repository=cache, remote=location, default_model="shop"))


def test_damaged_version_in_object_storage_leaves_the_previous_one_in_use(
    source: Path, cache: Path, location: str, serve: Serve, unloaded: Serve
) -> None:
    service = serve(cache, remote=location)
    push(source, location, version=2)
    ObjectStore(location).write("feed/2/weights.safetensors", b"damaged")
    with pytest.raises(BundleError, match=rf"^{location}/feed/2/weights\.safetensors was altered"):
        service.reconciler.poll()
    assert service.roles == {"current": "1"}
    shutil.rmtree(cache)
    fresh = unloaded(cache, remote=location)
    with pytest.raises(BundleError, match=r"weights\.safetensors was altered"):
        fresh.reconciler.poll()
    assert fresh.roles == {"fallback": "1"}


def test_loaded_version_survives_its_removal_from_the_copy(
    source: Path, cache: Path, location: str, small_bundle: Path, serve: Serve
) -> None:
    service = serve(cache, remote=location, copy_tables=False)
    model = service.models.get("feed").current
    for _ in range(4):
        publish(small_bundle, source)
    RemoteRepository(location, print).push(source)
    service.reconciler.poll()
    assert service.roles == {"current": "6"}
    assert repository.list_versions(cache, "feed") == [3, 4, 5, 6]
    assert model.ranker.count_unseen("item", pa.array(["v1", "unknown"])) == 1


def test_admin_cannot_release_in_a_copy(source: Path, cache: Path, location: str) -> None:
    app = create_app(Settings(repository=cache, remote=location, threads=1, poll_seconds=3600))
    with TestClient(app, raise_server_exceptions=False) as client:
        response = client.put("/v2/repository/models/feed/release", json={"version": 2})
        assert (response.status_code, response.json()["detail"]) == (
            409,
            f"this repository is a copy of {location}: change the release there with 'ranker release' and "
            "'ranker push'",
        )
        push(source, location, version=2)
        assert client.post("/v2/repository/models/feed/load").status_code == 200
        assert client.get("/v2/repository/models/feed/release").json() == {"version": 2}


def test_copies_are_logged(
    source: Path, cache: Path, location: str, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        serve(cache, remote=location)
    assert f"copied version 1 of feed from {location}" in caplog.text
