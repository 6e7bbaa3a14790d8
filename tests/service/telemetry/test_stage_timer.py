"""Stage times and the Server-Timing header."""

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
    """Replace ``time.monotonic`` by the single number in the returned list."""
    now = [100.0]
    monkeypatch.setattr("service.telemetry.stage_timer.time.monotonic", lambda: now[0])
    return now


def test_header_gives_each_stage_the_time_since_the_previous_one(clock: list[float]) -> None:
    timer = StageTimer()
    clock[0] += 0.001
    timer.end("parse")
    clock[0] += 0.25
    timer.end("queue")
    assert timer.arrived == 100.0
    assert timer.header() == "parse;dur=1.000, queue;dur=250.000"


def test_header_sums_recurring_stages(clock: list[float]) -> None:
    timer = StageTimer()
    for stage in ("queue", "forward", "queue", "forward"):
        clock[0] += 0.5
        timer.end(stage)  # type: ignore[arg-type]
    assert timer.header() == "queue;dur=1000.000, forward;dur=1000.000"


def test_server_timing_header_names_the_stages(repository: Path, request_body: dict[str, Any]) -> None:
    with TestClient(create_app(Settings(repository=repository, max_batch_rows=5))) as client:
        header = client.post("/v1/rank", json=request_body).headers["Server-Timing"]
        names = [part.split(";dur=")[0] for part in header.split(", ")]
        assert names == ["parse", "queue", "look-up", "forward", "write"]
        assert all(float(part.split(";dur=")[1]) >= 0 for part in header.split(", "))
        assert "Server-Timing" not in client.get("/v2/health/live").headers
