"""Feedback over HTTP: what is taken, what is written of it, and what is refused."""

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
def collecting(repository: Path, folder: Path) -> Iterator[TestClient]:
    app = create_app(Settings(repository=repository, feedback_dir=folder, max_candidates=200))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


def test_each_event_is_a_line_when_it_is_answered(collecting: TestClient, folder: Path) -> None:
    events = [EVENT, {"item": 7, "labels": {"is_like": 0}, "time": "2026-01-31T10:30:00+01:00"}]
    answer = collecting.post("/v1/feedback", json=BODY | {"events": events})
    assert (answer.status_code, answer.json()) == (202, {"accepted": 2})
    first, second = written(folder)
    assert first["request_id"] == second["request_id"] == "r-1"
    assert (first["item"], first["labels"]) == ("v1", {"is_click": 1, "watch_seconds": 12.5})
    assert (second["item"], second["labels"], second["time"]) == (7, {"is_like": 0}, "2026-01-31T09:30:00Z")
    assert first["time"] == first["received"] == second["received"]
    assert datetime.now(UTC) - datetime.fromisoformat(first["received"]) < timedelta(minutes=1)


def test_the_example_of_the_docs_is_taken(collecting: TestClient) -> None:
    text = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    (example,) = (each for each in re.findall(r"```json\n(.*?)```", text, re.DOTALL) if "events" in each)
    answer = collecting.post("/v1/feedback", content=example, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (202, {"accepted": 2})


WRONG: list[tuple[Any, str]] = [
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


@pytest.mark.parametrize(("body", "field"), WRONG, ids=range(len(WRONG)))
def test_the_field_that_is_wrong_is_named_and_nothing_is_written(
    collecting: TestClient, folder: Path, body: Any, field: str
) -> None:
    answer = collecting.post("/v1/feedback", json=body)
    assert answer.status_code == 422, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert written(folder) == []


@pytest.mark.parametrize("value", ["1", None, [1], True, 10**400], ids=repr)
def test_a_label_is_a_number(collecting: TestClient, folder: Path, value: Any) -> None:
    answer = collecting.post("/v1/feedback", json=BODY | {"events": [EVENT | {"labels": {"is_click": value}}]})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == "events[0].labels.is_click"
    assert written(folder) == []


def test_what_is_no_json_or_too_much_is_refused(collecting: TestClient, folder: Path) -> None:
    assert collecting.post("/v1/feedback", content=b"{", headers={"Content-Type": "text/plain"}).status_code == 415
    assert (
        collecting.post("/v1/feedback", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    )
    many = collecting.post("/v1/feedback", json=BODY | {"events": [EVENT] * 201})
    assert many.status_code == 413
    assert "at most 200" in many.json()["detail"]
    assert written(folder) == []


@pytest.mark.parametrize(("error", "status"), [(FeedbackQueueFullError(), 429), (OSError(28, "no space left"), 503)])
def test_what_cannot_be_kept_is_said_and_when_to_come_again(
    collecting: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(FeedbackWriter, "write", refuse)
    answer = collecting.post("/v1/feedback", json=BODY)
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) >= 1
    assert "space" not in answer.text


def test_where_none_is_collected_it_is_404(client: TestClient) -> None:
    answer = client.post("/v1/feedback", json=BODY)
    assert answer.status_code == 404
    assert "feedback_dir" in answer.json()["detail"]


def test_a_stopped_service_has_finished_its_file(repository: Path, folder: Path) -> None:
    with TestClient(create_app(Settings(repository=repository, feedback_dir=folder))) as client:
        client.post("/v1/feedback", json=BODY)
    assert [file.name.endswith(".jsonl") for file in folder.iterdir()] == [True]
