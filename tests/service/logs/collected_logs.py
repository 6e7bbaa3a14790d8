"""Logs that ``ranker collect`` brings to a folder: checks that they are those which the service writes to folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from fastapi.testclient import TestClient

from pipelines.jobs.join import join
from pipelines.loop.sources import LoopSources
from service.app import create_app
from service.settings import Settings
from tests.support.metrics import metrics_of
from tests.support.rank_request import rank
from tests.support.waiting import wait_until

BODY = {
    "user": {"id": "u3"},
    "time": datetime(2026, 1, 11, 12, tzinfo=UTC).isoformat(),
    "items": {"id": ["v0", "v1"]},
}

Collect = Callable[[Path], int]
"""Collects a log to a folder, and returns the number of files."""


def client_of(repository: Path, log: str | Path, **settings: Any) -> TestClient:
    """Return a client of a service with a served log."""
    return TestClient(create_app(Settings.model_validate({"repository": repository, "served_log": log, **settings})))


def check_served_log(repository: Path, log: str, collect: Collect, work: Path) -> None:
    """Check that a collected served log joins to the same rows as that of a folder."""
    for target in (log, work / "folder"):
        with client_of(repository, target, served_log_seconds=1) as client:
            for number in range(10):
                rank(client, BODY, request_id=f"r{number}")
            wait_until(lambda client=client: metrics_of(client)["ranker_served_requests_total"] > 0)
            for number in range(10, 20):
                rank(client, BODY, request_id=f"r{number}")
    assert collect(work / "collected") == len(list((work / "collected").glob("*.parquet"))) >= 2
    rows = joined_rows(work / "collected", work / "a")
    assert rows == joined_rows(work / "folder", work / "b")
    assert len(rows) == 40


def check_feedback(repository: Path, log: str, collect: Collect, work: Path) -> int:
    """Check that collected feedback labels the same rows as that of a folder, and return the number of its files."""
    served, shown = work / "served", datetime.now(UTC) - timedelta(hours=2)
    for target in (log, work / "folder"):
        shutil.rmtree(served, ignore_errors=True)
        with client_of(repository, served, feedback_dir=target) as client:
            for number in range(20):
                rank(client, BODY | {"time": shown.isoformat()}, request_id=f"r{number}")
                event = {"item": "v1", "labels": {"click": number % 2}, "time": shown.isoformat()}
                response = client.post("/v1/feedback", json={"request_id": f"r{number}", "events": [event]})
                assert (response.status_code, response.json()) == (202, {"accepted": 1})
    files = collect(work / "collected")
    rows = joined_rows(served, work / "b", work / "folder")
    assert sum(row["click"] or 0 for row in rows) == 10
    assert joined_rows(served, work / "a", work / "collected") == rows
    return files


def joined_rows(served: Path, folder: Path, feedback: Path | None = None) -> list[dict[str, Any]]:
    """Join logs with a window of an hour into a folder, and return the rows by request and position.

    Args:
        served: folder of the served log.
        folder: folder to write to.
        feedback: folder of feedback; None for an empty one.
    """
    if feedback is None:
        feedback = folder / "feedback"
        feedback.mkdir(parents=True)
    join(LoopSources(served, feedback), folder / "log", 3600)
    files = (folder / "log").glob("run-*/day=*/*.parquet")
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["request_id"], row["position"]))
