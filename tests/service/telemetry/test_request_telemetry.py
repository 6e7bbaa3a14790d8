"""Request logs: one line per slow or failed request, none otherwise."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.engine.engine import Engine
from service.settings import Settings
from service.telemetry import logs
from service.telemetry.metrics import Metrics


@pytest.fixture
def slow(repository: Path) -> Iterator[TestClient]:
    """Client of a service that treats every request as slow."""
    with TestClient(create_app(Settings(repository=repository, slow_ms=1e-6))) as client:
        yield client


def test_slow_request_is_logged_with_its_stages_and_without_ids(
    slow: TestClient, request_body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    slow.post("/v1/rank", json=request_body | {"tasks": ["click"]}, headers={"X-Request-ID": "abc-1"})
    (record,) = [record for record in caplog.records if record.name == "ranker.slow"]
    line = vars(record)
    expected = {"status": 200, "model": "feed", "version": "1", "candidates": 12, "tasks": ["click"]}
    assert expected.items() <= line.items()
    assert list(line["stages"]) == ["parse", "queue", "look-up", "forward", "write"]
    assert 0 < sum(line["stages"].values()) <= line["milliseconds"]
    text = logs.JsonFormatter().format(record)
    assert "u3" not in text  # the user
    assert "v1" not in text  # a candidate


def test_slow_rejected_request_is_logged_with_the_fields_known_so_far(
    slow: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    slow.post("/v1/rank", json={"items": 3})
    slow.post("/v1/models/nope/rank", json={"items": []})
    invalid, not_found = [vars(record) for record in caplog.records if record.name == "ranker.slow"]
    assert (invalid["status"], invalid["model"], invalid["stages"]) == (422, "feed", {})
    assert "candidates" not in invalid
    assert not_found["status"] == 404
    assert "model" not in not_found


def test_fast_and_rejected_requests_are_not_logged(
    client: TestClient, request_body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    client.post("/v1/rank", json=request_body)
    client.post("/v1/rank", json={"items": 3})
    client.post("/v1/rank", json=request_body | {"deadline_ms": 0.001})
    assert [record for record in caplog.records if record.name.startswith(("ranker", "uvicorn"))] == []


def test_failed_request_logs_the_exception_that_the_response_hides(
    repository: Path, request_body: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        logging.getLogger("ranker.service").info("about to fail with id %s", logs.request_id.get())
        raise RuntimeError("a secret")

    monkeypatch.setattr(Engine, "rank", fail)
    with TestClient(create_app(Settings(repository=repository))) as client:
        caplog.clear()
        caplog.set_level(logging.INFO)
        response = client.post("/v1/rank", json=request_body, headers={"X-Request-ID": "abc-1"})
        metrics = client.get("/metrics").text
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == "abc-1"
    assert "secret" not in response.text
    (before, line) = [record for record in caplog.records if record.name == "ranker.service"]
    assert before.getMessage() == "about to fail with id abc-1"
    assert line.levelname == "ERROR"
    assert line.exc_info is not None
    assert "a secret" in str(line.exc_info[1])
    assert 'ranker_requests_total{model="feed",status="500"} 1.0' in metrics


def test_failing_telemetry_does_not_fail_requests_and_is_logged_once(
    repository: Path, request_body: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Metrics, "record_request", fail)
    with TestClient(create_app(Settings(repository=repository))) as client:
        for _ in range(3):
            assert client.post("/v1/rank", json=request_body).status_code == 200
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "the telemetry of a request failed; further failures are not logged"
    assert "no space left" in str(record.exc_info)
