"""Admission over HTTP: rejected requests, and the release of permits."""

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
from service.settings import Settings
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

BODY = {"items": [{"id": "v1"}]}


@pytest.fixture
def start_scoring(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event before which the engine scores nothing."""
    event = threading.Event()
    score_batch = engine.score_batch

    def score_after_event(key: Any, batch: Sequence[Any]) -> Any:
        assert event.wait(TIMEOUT_SECONDS)
        return score_batch(key, batch)

    monkeypatch.setattr(engine, "score_batch", score_after_event)
    return event


@pytest.mark.parametrize("limit", [{"max_queue_rows": 1}, {"max_queue_requests": 1}])
def test_rank_request_above_the_queue_limit_is_rejected_with_429(
    repository: Path, start_scoring: threading.Event, limit: dict[str, int]
) -> None:
    with TestClient(create_app(Settings(repository=repository, **limit))) as client, ThreadPoolExecutor() as pool:
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
    settings = Settings(repository=repository, max_queue_requests=1, max_candidates=5)
    invalid = [{"items": 3}, {"items": [{"id": 1}] * 9}, BODY | {"deadline_ms": 0.001}, BODY | {"tasks": [""]}]
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        for body in (BODY, *invalid):
            for _ in range(3):
                assert client.post("/v1/rank", json=body).status_code != 429
        for path in ("/v1/models/none/rank", "/nowhere/rank"):
            assert client.post(path, json=BODY).status_code == 404
        assert client.get("/v1/rank").status_code == 405
        assert client.post("/v1/rank", json=BODY).status_code == 200
