"""A process that can load no released version serves a fallback, or waits until it can."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipelines.jobs.publish import publish
from ranking.artifacts import repository
from ranking.errors import BundleError
from service.app import create_app
from service.models import reconciler, rejected_versions
from service.settings import Settings
from tests.service.models.conftest import Service
from tests.support.waiting import wait_until

Serve = Callable[..., Service]

INFO = 'ranker_model_info{{model="feed",role="{}",version="{}"}}'.format


@pytest.fixture
def damaged(repo: Path, bundle: Path) -> Path:
    """A repository with versions 1 to 3 of "feed", of which 3 is current and damaged."""
    publish(bundle, repo)
    damage(repo, 3)
    return repo


def damage(repo: Path, version: int) -> None:
    file = repo / "feed" / str(version) / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def repair(repo: Path, bundle: Path, version: int) -> None:
    shutil.copy(bundle / "weights.safetensors", repo / "feed" / str(version) / "weights.safetensors")


def test_damaged_current_version_is_replaced_by_the_newest_whole_fallback(damaged: Path, serve: Serve) -> None:
    assert repository.read_fallbacks(damaged, "feed") == [1]
    service = serve(damaged)
    assert service.roles == {"fallback": "1"}
    assert service.models.ready
    assert service.metric(INFO("fallback", "1")) == 1
    assert service.metric('ranker_model_load_failures_total{model="feed"}') == 1


def test_damaged_fallbacks_are_skipped(damaged: Path, bundle: Path, serve: Serve) -> None:
    publish(bundle, damaged)
    publish(bundle, damaged)
    for version in (4, 5):
        damage(damaged, version)
    assert repository.read_fallbacks(damaged, "feed") == [4, 3, 1]
    assert serve(damaged).roles == {"fallback": "1"}


def test_fallback_is_logged_once_and_serves_until_the_version_is_repaired(
    damaged: Path, bundle: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(damaged)
    for _ in range(3):
        service.reconciler.poll()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings[0].startswith("rejected version 3 of 'feed': ")
    assert warnings[1:] == ["the released version of 'feed' cannot be served; version 1 replaces it"]
    repair(damaged, bundle, 3)
    service.reconciler.poll()
    assert service.roles == {"current": "3"}
    assert [service.metric(INFO("fallback", "1")), service.metric(INFO("current", "3"))] == [0, 1]


def test_fallback_that_is_released_becomes_current_without_another_load(damaged: Path, serve: Serve) -> None:
    service = serve(damaged)
    fallback = service.models.get("feed").current
    service.release(version=1)
    assert service.roles == {"current": "1"}
    assert service.models.get("feed").current is fallback


def test_version_never_released_or_rolled_back_is_not_a_fallback(repo: Path, serve: Serve) -> None:
    damage(repo, 1)
    with pytest.raises(BundleError, match=r"feed/1/weights\.safetensors was altered"):
        serve(repo)


def test_canary_of_a_damaged_version_serves_its_share_beside_the_fallback(damaged: Path, serve: Serve) -> None:
    (damaged / "feed" / "current.json").write_text('{"version": 3, "canary": {"version": 2, "weight": 0.5}}')
    assert serve(damaged).roles == {"fallback": "1", "canary": "2"}


@pytest.mark.parametrize("kind", ["damaged", "pipe", "folder", "missing version"])
def test_unusable_current_json_is_replaced_by_a_fallback(damaged: Path, serve: Serve, kind: str) -> None:
    file = damaged / "feed" / "current.json"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_text("{" if kind == "damaged" else '{"version": 9}')
    assert serve(damaged).roles == {"fallback": "1"}


@pytest.mark.parametrize("content", ["{", "pipe"])
def test_unusable_fallbacks_are_logged_once_and_ignored(
    damaged: Path, bundle: Path, serve: Serve, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = damaged / "feed" / "fallbacks.json"
    file.unlink()
    if content == "pipe":
        os.mkfifo(file)
    else:
        file.write_text(content)
    with pytest.raises(BundleError, match=r"feed/3/weights\.safetensors was altered"):
        serve(damaged)
    assert [record.getMessage() for record in caplog.records if "fallbacks.json" in record.getMessage()]


def test_damaged_version_without_fallback_is_retried_and_ready_when_repaired(
    repo: Path, bundle: Path, unloaded: Callable[[Path], Service], caplog: pytest.LogCaptureFixture
) -> None:
    content = (repo / "feed" / "1" / "weights.safetensors").read_bytes()
    damage(repo, 1)
    service = unloaded(repo)
    for _ in range(3):
        service.reconciler.poll()
        assert not service.models.ready
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert errors[1].startswith("not ready until a model can be loaded: ")
    assert service.metric('ranker_model_load_failures_total{model="feed"}') == 1
    (repo / "feed" / "1" / "weights.safetensors").write_bytes(content)
    service.reconciler.poll()
    assert service.models.ready
    assert service.roles == {"current": "1"}


def test_transient_error_is_retried_after_a_while_although_no_file_changes(
    repo: Path, unloaded: Callable[[Path], Service], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = unloaded(repo)
    load_model, attempts = reconciler.load_model, []

    def fail_at_first(*arguments: object) -> object:
        attempts.append(arguments)
        if len(attempts) < 3:
            raise BundleError("the disk does not respond")
        return load_model(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reconciler, "load_model", fail_at_first)
    for _ in range(3):
        service.reconciler.poll()
    assert len(attempts) == 1
    monkeypatch.setattr(rejected_versions, "RETRY_SECONDS", 0.0)
    service.reconciler.poll()
    assert (len(attempts), service.models.ready) == (2, False)
    service.reconciler.poll()
    assert service.roles == {"current": "1"}
    assert len([record for record in caplog.records if record.getMessage().startswith("rejected")]) == 1


def test_responses_of_a_fallback_are_degraded_and_the_index_shows_it(
    damaged: Path, bundle: Path, request_body: dict[str, Any]
) -> None:
    with TestClient(create_app(Settings(repository=damaged, threads=1, poll_seconds=0.05))) as client:
        responses = [client.post(path, json=request_body).json() for path in ("/v1/rank", "/v1/models/feed/rank")]
        assert [(response["version"], response["degraded"]) for response in responses] == [("1", True)] * 2
        assert not client.post("/v1/models/feed/versions/1/rank", json=request_body).json()["degraded"]
        assert client.get("/v2/health/ready").status_code == 200
        index = {entry["version"]: entry for entry in client.post("/v2/repository/index").json()}
        assert (index["1"]["state"], index["1"]["roles"]) == ("READY", ["fallback"])
        assert index["3"]["state"] == "UNAVAILABLE"
        assert "weights.safetensors was altered" in index["3"]["reason"]
        repair(damaged, bundle, 3)
        wait_until(lambda: client.post("/v1/rank", json=request_body).json()["version"] == "3")
        assert not client.post("/v1/rank", json=request_body).json()["degraded"]
