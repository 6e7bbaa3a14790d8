"""The gateway: admission, the release of permits, unexpected errors, and the choice of a raw route."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.engine import engine
from service.http.gateway import find_route
from service.http.openapi import RawRoute
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

BODY = {"items": [{"id": "v1"}]}


@pytest.fixture
def start_scoring(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event before which the engine scores nothing."""
    event = threading.Event()
    score_batch = engine.score_batch

    def score_after_event(key: Any, batch: Sequence[Any], **options: Any) -> Any:
        assert event.wait(TIMEOUT_SECONDS)
        return score_batch(key, batch, **options)

    monkeypatch.setattr(engine, "score_batch", score_after_event)
    return event


def test_rank_request_above_the_queue_limit_is_rejected_with_429(
    repository: Path, start_scoring: threading.Event
) -> None:
    settings = Settings(repository=repository, max_queue_rows=1)
    with TestClient(create_app(settings)) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/v1/rank", json=BODY)
        wait_until(lambda: "ranker_queue_rows 1.0" in client.get("/metrics").text or first.done(), "a request waits")
        assert not first.done()
        rejected = client.post("/v1/rank", json=BODY)
        start_scoring.set()
        assert first.result().status_code == 200
        assert client.post("/v1/rank", json=BODY).status_code == 200
        assert 'ranker_rejections_total{reason="queue_full"} 1.0' in client.get("/metrics").text
    assert rejected.status_code == 429
    assert rejected.headers["retry-after"] == "1"
    assert rejected.headers["content-type"] == "application/problem+json"
    assert rejected.headers["x-request-id"]
    assert rejected.json()["status"] == 429


def test_permit_is_released_however_a_request_ends(repository: Path) -> None:
    settings = Settings(repository=repository, max_queue_rows=1, max_candidates=5)
    invalid = [{"items": 3}, {"items": [{"id": 1}] * 9}, BODY | {"deadline_ms": 0.001}, BODY | {"tasks": [""]}]
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        for body in (BODY, *invalid):
            for _ in range(3):
                assert client.post("/v1/rank", json=body).status_code != 429
        for path in ("/v1/models/none/rank", "/nowhere/rank"):
            assert client.post(path, json=BODY).status_code == 404
        assert client.get("/v1/rank").status_code == 405
        assert client.post("/v1/rank", json=BODY).status_code == 200


@pytest.mark.parametrize("path", ["/v1/rank", "/v1/models/feed/rank", "/v2/models/feed/infer", "/v1/feedback"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_another_method_of_a_raw_route_returns_405(client: TestClient, path: str, method: str) -> None:
    response = client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/rank"),
        ("POST", "/v1/models/feed/versions/1/rank"),
        ("GET", "/v2/models/feed"),
        ("GET", "/metrics"),
    ],
)
def test_unexpected_error_returns_500_and_is_logged_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("secret")

    monkeypatch.setattr(ModelRegistry, "get", fail)
    monkeypatch.setattr(ModelRegistry, "get_version", fail)
    monkeypatch.setattr(Metrics, "exposition", fail)
    with TestClient(create_app(Settings(repository=repository))) as client:
        response = client.request(method, path, headers={"X-Request-ID": "r1"})
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "r1"
    document = response.json()
    assert document.get("detail", document.get("error")) == "the service failed; its log says why"
    assert caplog.text.count("request failed") == 1
    assert "secret" in caplog.text


def operation() -> None: ...


ROUTES = [
    RawRoute("/rank", operation, methods=["POST"]),
    RawRoute("/models/{model}/rank", operation, methods=["POST"]),
    RawRoute("/models/{model}/versions/{version}/rank", operation, methods=["POST"]),
]


def test_find_route_returns_the_path_parameters() -> None:
    assert find_route(ROUTES, "POST", "/rank") == (ROUTES[0], {})
    assert find_route(ROUTES, "POST", "/models/a/rank") == (ROUTES[1], {"model": "a"})
    assert find_route(ROUTES, "POST", "/models/a b/versions/2/rank") == (ROUTES[2], {"model": "a b", "version": "2"})


def test_find_route_returns_none_for_other_methods_and_paths() -> None:
    for method, path in (("GET", "/rank"), ("POST", "/rank/"), ("POST", "/models//rank"), ("POST", "/models/a/b/rank")):
        assert find_route(ROUTES, method, path) is None
