"""Too many at once: who is refused, what is said, and that room is given back however a request ends."""

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

SECONDS = 60.0
ONE = {"items": [{"id": "v1"}]}


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is scored before it is set."""
    go = threading.Event()
    score = engine.score_batch

    def held(key: Any, batch: Sequence[Any]) -> Any:
        assert go.wait(SECONDS)
        return score(key, batch)

    monkeypatch.setattr(engine, "score_batch", held)
    return go


@pytest.mark.parametrize("limit", [{"max_queue_rows": 1}, {"max_queue_requests": 1}])
def test_a_request_too_many_is_429_and_told_when_to_try_again(
    repository: Path, go: threading.Event, limit: dict[str, int]
) -> None:
    with TestClient(create_app(Settings(repository=repository, **limit))) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/v1/rank", json=ONE)
        while "ranker_queue_rows 1.0" not in client.get("/metrics").text:
            assert not first.done()
        refused = client.post("/v1/rank", json=ONE)
        go.set()
        assert first.result().status_code == 200
        assert client.post("/v1/rank", json=ONE).status_code == 200
        assert 'ranker_rejections_total{reason="queue_full"} 1.0' in client.get("/metrics").text
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["x-request-id"]
    assert refused.json()["status"] == 429


def test_room_is_given_back_however_a_request_ends(repository: Path) -> None:
    settings = Settings(repository=repository, max_queue_requests=1, max_candidates=5)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        for body in (ONE, {"items": 3}, {"items": [{"id": 1}] * 9}, ONE | {"deadline_ms": 1e-6}, ONE | {"tasks": [""]}):
            for _ in range(3):
                assert client.post("/v1/rank", json=body).status_code != 429
        for path in ("/v1/models/none/rank", "/nowhere/rank"):
            assert client.post(path, json=ONE).status_code == 404
        assert client.get("/v1/rank").status_code == 405
        assert client.post("/v1/rank", json=ONE).status_code == 200
