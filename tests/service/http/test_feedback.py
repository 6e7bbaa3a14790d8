"""``POST /v1/feedback``: accepted events, written lines and rejected requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.feedback.writer import FeedbackQueueFullError, FeedbackWriter
from service.settings import Settings

EVENT: dict[str, Any] = {"item": "v1", "labels": {"is_click": 1, "watch_seconds": 12.5}}
BODY: dict[str, Any] = {"request_id": "r-1", "events": [EVENT]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "feedback"


@pytest.fixture
def feedback_client(repository: Path, folder: Path) -> Iterator[TestClient]:
    app = create_app(Settings(repository=repository, feedback_dir=folder, max_candidates=200))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


def test_feedback_events_are_lines_of_a_file_before_the_response(feedback_client: TestClient, folder: Path) -> None:
    events = [EVENT, {"item": 7, "labels": {"is_like": 0}, "time": "2026-01-31T10:30:00+01:00"}]
    response = feedback_client.post("/v1/feedback", json=BODY | {"events": events})
    assert (response.status_code, response.json()) == (202, {"accepted": 2})
    first, second = lines(folder)
    assert first["request_id"] == second["request_id"] == "r-1"
    assert (first["item"], first["labels"]) == ("v1", {"is_click": 1, "watch_seconds": 12.5})
    assert (second["item"], second["labels"], second["time"]) == (7, {"is_like": 0}, "2026-01-31T09:30:00Z")
    assert first["time"] == first["received"] == second["received"]
    assert datetime.now(UTC) - datetime.fromisoformat(first["received"]) < timedelta(minutes=1)


def test_feedback_example_of_the_docs_is_accepted(feedback_client: TestClient) -> None:
    text = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    (example,) = (block for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL) if "events" in block)
    response = feedback_client.post("/v1/feedback", content=example, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()) == (202, {"accepted": 2})


INVALID: list[tuple[Any, str]] = [
    ([], "body"),
    ({"events": [EVENT]}, "request_id"),
    (BODY | {"request_id": ""}, "request_id"),
    (BODY | {"request_id": 1}, "request_id"),
    (BODY | {"user": "u1"}, "user"),
    (BODY | {"events": []}, "events"),
    (BODY | {"events": [{"item": "v1"}]}, "events[0].labels"),
    (BODY | {"events": [EVENT | {"labels": {}}]}, "events[0].labels"),
    (BODY | {"events": [EVENT | {"item": None}]}, "events[0].item"),
    (BODY | {"events": [EVENT, EVENT | {"time": "noon"}]}, "events[1].time"),
    (BODY | {"events": [EVENT | {"time": "2026-01-31T10:30:00"}]}, "events[0].time"),
    (BODY | {"events": [EVENT | {"time": "0001-01-01T00:00:00+14:00"}]}, "events[0].time"),
    (BODY | {"events": [EVENT | {"time": 1_700_000_000}]}, "events[0].time"),
]


@pytest.mark.parametrize(("body", "field"), INVALID, ids=range(len(INVALID)))
def test_feedback_invalid_field_is_named_and_nothing_is_written(
    feedback_client: TestClient, folder: Path, body: Any, field: str
) -> None:
    response = feedback_client.post("/v1/feedback", json=body)
    assert response.status_code == 422, response.text
    assert [error["field"] for error in response.json()["errors"]] == [field]
    assert lines(folder) == []


@pytest.mark.parametrize("value", ["1", None, [1], True, 10**400], ids=repr)
def test_feedback_label_other_than_a_number_is_422(feedback_client: TestClient, folder: Path, value: Any) -> None:
    response = feedback_client.post("/v1/feedback", json=BODY | {"events": [EVENT | {"labels": {"is_click": value}}]})
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["field"] == "events[0].labels.is_click"
    assert lines(folder) == []


def test_feedback_with_another_content_type_invalid_json_or_too_many_events_is_rejected(
    feedback_client: TestClient, folder: Path
) -> None:
    assert feedback_client.post("/v1/feedback", content=b"{", headers={"Content-Type": "text/plain"}).status_code == 415
    assert (
        feedback_client.post("/v1/feedback", content=b"{", headers={"Content-Type": "application/json"}).status_code
        == 400
    )
    many = feedback_client.post("/v1/feedback", json=BODY | {"events": [EVENT] * 201})
    assert many.status_code == 413
    assert "at most 200" in many.json()["detail"]
    assert lines(folder) == []


@pytest.mark.parametrize(("error", "status"), [(FeedbackQueueFullError(), 429), (OSError(28, "no space left"), 503)])
def test_feedback_that_cannot_be_written_is_rejected_with_retry_after(
    feedback_client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(FeedbackWriter, "write", fail)
    response = feedback_client.post("/v1/feedback", json=BODY)
    assert response.status_code == status
    assert int(response.headers["retry-after"]) >= 1
    assert "space" not in response.text


def test_feedback_without_feedback_dir_is_404(client: TestClient) -> None:
    response = client.post("/v1/feedback", json=BODY)
    assert response.status_code == 404
    assert "feedback_dir" in response.json()["detail"]


def test_feedback_file_is_finished_when_the_service_stops(repository: Path, folder: Path) -> None:
    with TestClient(create_app(Settings(repository=repository, feedback_dir=folder))) as client:
        client.post("/v1/feedback", json=BODY)
    assert [file.name.endswith(".jsonl") for file in folder.iterdir()] == [True]
