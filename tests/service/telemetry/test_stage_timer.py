"""Where a request's time goes, if the operator wants answers to say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from service.telemetry.stage_timer import StageTimer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; its one number can be changed."""
    now = [100.0]
    monkeypatch.setattr("service.telemetry.stage_timer.time.monotonic", lambda: now[0])
    return now


def test_each_stage_is_the_time_since_the_one_before(clock: list[float]) -> None:
    stages = StageTimer()
    clock[0] += 0.001
    stages.end("parse")
    clock[0] += 0.25
    stages.end("queue")
    assert stages.arrived == 100.0
    assert stages.header() == "parse;dur=1.000, queue;dur=250.000"


def test_a_stage_that_recurs_is_summed(clock: list[float]) -> None:
    stages = StageTimer()
    for stage in ("queue", "forward", "queue", "forward"):
        clock[0] += 0.5
        stages.end(stage)  # type: ignore[arg-type]
    assert stages.header() == "queue;dur=1000.000, forward;dur=1000.000"


def test_answers_name_their_stages_if_asked_to(repository: Path, request_body: dict[str, Any]) -> None:
    with TestClient(create_app(Settings(repository=repository, server_timing=True, max_batch_rows=5))) as client:
        header = client.post("/v1/rank", json=request_body).headers["Server-Timing"]
        names = [part.split(";dur=")[0] for part in header.split(", ")]
        assert names == ["parse", "queue", "look-up", "forward", "write"]
        assert all(float(part.split(";dur=")[1]) >= 0 for part in header.split(", "))
        assert "Server-Timing" not in client.get("/v2/health/live").headers


def test_answers_do_not_name_them_otherwise(client: TestClient, request_body: dict[str, Any]) -> None:
    assert "Server-Timing" not in client.post("/v1/rank", json=request_body).headers
