"""What the log says of requests: nothing of those that went well or were refused, one line of a slow or failed one."""

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


@pytest.fixture
def slow(repository: Path) -> Iterator[TestClient]:
    """Of a service that finds every request slow."""
    with TestClient(create_app(Settings(repository=repository, slow_ms=1e-6))) as client:
        yield client


def test_a_slow_request_is_a_line_with_its_stages(
    slow: TestClient, request_body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    slow.post("/v1/rank", json=request_body | {"tasks": ["click"]}, headers={"X-Request-ID": "abc-1"})
    (record,) = [record for record in caplog.records if record.name == "ranker.slow"]
    line = vars(record)
    told = {"status": 200, "model": "feed", "version": "1", "candidates": 12, "tasks": ["click"]}
    assert told.items() <= line.items()
    assert list(line["stages"]) == ["parse", "queue", "look-up", "forward", "write"]
    assert 0 < sum(line["stages"].values()) <= line["milliseconds"]
    text = logs.JsonFormatter().format(record)
    assert "u3" not in text  # the user
    assert "v1" not in text  # a candidate


def test_a_slow_request_that_was_refused_is_told_as_far_as_it_came(
    slow: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    slow.post("/v1/rank", json={"items": 3})
    slow.post("/v1/models/nope/rank", json={"items": []})
    unread, unfound = [vars(record) for record in caplog.records if record.name == "ranker.slow"]
    assert (unread["status"], unread["model"], unread["stages"]) == (422, "feed", {})
    assert "candidates" not in unread
    assert unfound["status"] == 404
    assert "model" not in unfound


def test_quick_and_refused_requests_are_no_lines(
    client: TestClient, request_body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    client.post("/v1/rank", json=request_body)
    client.post("/v1/rank", json={"items": 3})
    client.post("/v1/rank", json=request_body | {"deadline_ms": 1e-6})
    assert [record for record in caplog.records if record.name.startswith(("ranker", "uvicorn"))] == []


def test_a_failed_request_is_one_line_with_the_reason_which_the_answer_does_not_give(
    repository: Path,
    request_body: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any) -> None:
        logging.getLogger("ranker.service").info("about to fail with id %s", logs.request_id.get())
        raise RuntimeError("a secret of ours")

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
    assert "a secret of ours" in str(line.exc_info[1])
    assert 'ranker_requests_total{model="feed",status="500"} 1.0' in metrics
