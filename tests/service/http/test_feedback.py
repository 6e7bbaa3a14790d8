"""``POST /v1/feedback``: accepted events, written lines and rejected requests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.http.auth.keys import create_key
from service.logs.feedback_log import FeedbackLog, FeedbackQueueFullError
from service.logs.quota import FolderFullError
from service.protocol.messages import MAX_LABELS
from service.settings import Settings
from tests.support.metrics import metrics_of
from tests.support.rank_request import rank

EVENT: dict[str, Any] = {"item": "v1", "labels": {"click": 1, "watch_time": 12.5}}
BODY: dict[str, Any] = {"request_id": "r-1", "events": [EVENT]}
RANK_BODY = {"items": {"id": [f"v{i}" for i in range(12)]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "feedback"


@pytest.fixture
def feedback_client(repository: Path, folder: Path) -> Iterator[TestClient]:
    """A client of a service that has answered the request r-1 with the items v0 to v11."""
    settings = Settings(repository=repository, feedback_dir=folder, max_candidates=200)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        rank(client, RANK_BODY, request_id="r-1")
        yield client


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_feedback_of_a_request_is_one_line_of_a_file_before_the_response(
    feedback_client: TestClient, folder: Path
) -> None:
    events = [EVENT, {"item": "v7", "labels": {"like": 0}, "time": datetime.now(UTC).isoformat()}]
    response = feedback_client.post("/v1/feedback", json=BODY | {"events": events, "model": "feed"})
    assert (response.status_code, response.json()) == (202, {"accepted": 2})
    (line,) = lines(folder)
    assert list(line) == ["request_id", "key", "received", "model", "events"]
    assert (line["request_id"], line["key"], line["model"]) == ("r-1", None, "feed")
    assert line["events"][0] == {"item": "v1", "labels": {"click": 1.0, "watch_time": 12.5}}
    assert datetime.now(UTC) - datetime.fromisoformat(line["received"]) < timedelta(minutes=1)
    assert datetime.fromisoformat(line["events"][1]["time"]) == datetime.fromisoformat(events[1]["time"])


def test_feedback_time_is_written_in_utc(feedback_client: TestClient, folder: Path) -> None:
    local = datetime.now(UTC).replace(microsecond=0) - timedelta(days=2)
    text = local.astimezone(timezone(timedelta(hours=1))).isoformat()
    assert feedback_client.post("/v1/feedback", json=BODY | {"events": [EVENT | {"time": text}]}).status_code == 202
    assert lines(folder)[0]["events"][0]["time"] == f"{local:%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize(
    ("request_id", "event", "limit"),
    [
        ("r" * 256, {"item": 1, "labels": {"click": 1}}, 1.15),  # labels are written as numbers with a fraction
        ("r-1", {"item": "v1", "labels": {"click": 1, "like": 0}, "time": "2026-01-31T09:30:00+00:00"}, 1.1),
        ("ü" * 256, {"item": '"\n' * 20, "labels": {"click": 1, "watch_time": 12.5}}, 1.02),
        ("r-1", {"item": "v1", "labels": {f"label {n}": 9e15 for n in range(MAX_LABELS)}}, 2.0),
    ],
)
def test_feedback_takes_about_as_many_bytes_on_disk_as_in_the_request(
    repository: Path, folder: Path, request_id: str, event: dict[str, Any], limit: float
) -> None:
    body = orjson.dumps({"request_id": request_id, "events": [event] * 200}).replace(b"000000000000000.0", b"e15")
    settings = Settings(repository=repository, feedback_dir=folder, feedback_reject="none")
    with TestClient(create_app(settings)) as client:
        response = client.post("/v1/feedback", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 202, response.text
    (file,) = folder.iterdir()
    assert file.stat().st_size <= limit * len(body) + 150


def test_feedback_example_of_the_docs_is_accepted(feedback_client: TestClient) -> None:
    text = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
    (example,) = (block for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL) if '"events"' in block)
    response = feedback_client.post("/v1/feedback", content=example, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["accepted"]) == (202, 2)


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
    (BODY | {"events": [EVENT, EVENT | {"labels": {f"l{n}": 1 for n in range(MAX_LABELS + 1)}}]}, "events[1].labels"),
    (BODY | {"events": [EVENT | {"labels": {"l" * 129: 1}}]}, f"events[0].labels.{'l' * 129}"),
    (BODY | {"model": ""}, "model"),
    (BODY | {"events": [EVENT, EVENT | {"labels": {"click": 0.5}}]}, "events[1].labels.click"),
    (BODY | {"events": [EVENT, EVENT | {"labels": {"watch_time": 1e300}}]}, "events[1].labels.watch_time"),
    (BODY | {"events": [EVENT | {"labels": {"unknown": 1e39}}]}, "events[0].labels.unknown"),
    (BODY | {"events": [EVENT | {"time": "2126-01-31T10:30:00Z"}]}, "events[0].time"),
    (BODY | {"events": [EVENT | {"time": "1970-01-01T00:00:00Z"}]}, "events[0].time"),
    *(
        (BODY | {"events": [EVENT | {"labels": {"click": value}}]}, "events[0].labels.click")
        for value in ("1", None, [1], True, 10**400)
    ),
]


@pytest.fixture(scope="module")
def rejecting(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    """A client of a service that has written no feedback, and the folder for it."""
    folder = tmp_path_factory.mktemp("feedback")
    with TestClient(create_app(Settings(repository=repository, feedback_dir=folder))) as client:
        yield client, folder


@pytest.mark.parametrize(("body", "field"), INVALID, ids=range(len(INVALID)))
def test_feedback_invalid_field_is_named_and_nothing_is_written(
    rejecting: tuple[TestClient, Path], body: Any, field: str
) -> None:
    client, folder = rejecting
    response = client.post("/v1/feedback", json=body)
    assert response.status_code == 422, response.text
    assert [error["field"] for error in response.json()["errors"]] == [field]
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


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (FeedbackQueueFullError(), 429, "queue_full"),
        (OSError(28, "no space left"), 503, "not_written"),
        (TimeoutError(), 503, "not_written"),
        (FolderFullError("its files have 10 bytes"), 503, "folder_full"),
    ],
)
def test_feedback_that_cannot_be_written_is_rejected_with_retry_after(
    feedback_client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, outcome: str
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(FeedbackLog, "write", fail)
    response = feedback_client.post("/v1/feedback", json=BODY)
    assert response.status_code == status
    assert int(response.headers["retry-after"]) >= 1
    assert "space" not in response.text
    values = metrics_of(feedback_client)
    assert values[f"ranker_feedback_requests_total,outcome={outcome}"] == 1


def test_feedback_without_feedback_dir_is_404(client: TestClient) -> None:
    response = client.post("/v1/feedback", json=BODY)
    assert response.status_code == 404
    assert "feedback_dir" in response.json()["detail"]


def test_feedback_file_is_finished_when_the_service_stops(repository: Path, folder: Path) -> None:
    with TestClient(create_app(Settings(repository=repository, feedback_dir=folder))) as client:
        client.post("/v1/feedback", json=BODY)
    assert [file.name.endswith(".jsonl") for file in folder.iterdir()] == [True]


def test_feedback_with_many_events_is_validated_in_parts_with_correct_indices(
    feedback_client: TestClient, folder: Path
) -> None:
    valid = [{"item": f"v{i % 12}", "labels": {"click": i % 2}} for i in range(200)]
    response = feedback_client.post("/v1/feedback", json=BODY | {"events": valid})
    assert response.json() == {"accepted": 200}
    assert [event["item"] for event in lines(folder)[0]["events"]] == [event["item"] for event in valid]
    for wrong, field in [({"labels": {"click": "1"}}, "labels.click"), ({"labels": {"click": 2}}, "labels.click")]:
        events = [*valid[:150], valid[150] | wrong, *valid[151:]]
        rejected = feedback_client.post("/v1/feedback", json=BODY | {"events": events})
        assert rejected.status_code == 422
        assert [error["field"] for error in rejected.json()["errors"]] == [f"events[150].{field}"]
    assert len(lines(folder)) == 1


SUSPECT: list[tuple[dict[str, Any], str]] = [
    ({"request_id": "r-2"}, "unknown_request"),
    ({"events": [EVENT | {"item": "v99"}]}, "unknown_item"),
    ({"events": [EVENT | {"labels": {"clicked": 1}}]}, "unknown_label"),
    ({"model": "shop"}, "unknown_model"),
    ({"events": [EVENT | {"labels": {"click": 3}}]}, "value"),
    ({"events": [EVENT | {"time": "2126-01-31T10:30:00Z"}]}, "time"),
]


@pytest.mark.parametrize(("fields", "reason"), SUSPECT, ids=[reason for _, reason in SUSPECT])
def test_suspect_feedback_is_rejected_or_accepted_and_counted_as_the_setting_says(
    repository: Path, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    for reject, status, outcome in [(reason, 422, "rejected"), ("none", 202, "accepted")]:
        folder = tmp_path / reject
        settings = Settings(repository=repository, feedback_dir=folder, feedback_reject=reject)
        with TestClient(create_app(settings)) as client:
            rank(client, RANK_BODY, request_id="r-1")
            response = client.post("/v1/feedback", json=BODY | fields)
            assert response.status_code == status, response.text
            values = metrics_of(client)
        assert values[f"ranker_feedback_events_total,outcome={outcome},reason={reason}"] == 1
        if status == 202:
            assert response.json() == {"accepted": 1, "flagged": {reason: 1}}
            assert values["ranker_feedback_requests_total,outcome=accepted"] == 1
        else:
            assert values[f"ranker_feedback_requests_total,outcome={reason}"] == 1
        assert len(lines(folder)) == (status == 202)


def test_item_beyond_top_n_was_not_in_the_answer(feedback_client: TestClient) -> None:
    rank(feedback_client, RANK_BODY, request_id="r-3", top_n=3)
    events = [{"item": f"v{i}", "labels": {"click": 0}} for i in range(12)]
    response = feedback_client.post("/v1/feedback", json={"request_id": "r-3", "events": events})
    assert response.json() == {"accepted": 12, "flagged": {"unknown_item": 9}}


def test_answer_to_a_request_without_id_is_remembered_by_the_generated_one(feedback_client: TestClient) -> None:
    answer = feedback_client.post("/v1/rank", json={"items": [{"id": "v1"}]}).json()
    response = feedback_client.post("/v1/feedback", json=BODY | {"request_id": answer["request_id"]})
    assert response.json() == {"accepted": 1}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_feedback_of_each_key_can_be_removed(repository: Path, folder: Path, key_file: Path) -> None:
    keys = {name: create_key(key_file, name, ("feedback",)) for name in ("shop", "x-shop", "app")}
    with TestClient(create_app(Settings(repository=repository, keys=key_file, feedback_dir=folder))) as client:
        for name, secret in keys.items():
            for _ in range(2):
                response = client.post("/v1/feedback", json=BODY | {"request_id": name}, headers={"X-API-Key": secret})
                assert response.status_code == 202
    assert {(line["key"], line["request_id"]) for line in lines(folder)} == {(name, name) for name in keys}
    guide = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    (command,) = (line for line in guide.splitlines() if line.startswith("rm "))
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    assert {line["key"] for line in lines(folder)} == {"x-shop", "app"}


def test_python_example_of_the_guide_reads_and_filters_the_files(
    feedback_client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [EVENT, {"item": "v2", "labels": {"like": 0}, "time": "2026-01-31T09:30:00Z"}]
    with monkeypatch.context() as patch:
        patch.setattr("service.logs.feedback_checks.MAX_AGE", timedelta(days=10_000))
        assert feedback_client.post("/v1/feedback", json=BODY | {"events": events}).status_code == 202
    for file in folder.glob("*.part"):
        file.rename(file.with_suffix(""))
    guide = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "events" in block)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(example, names)
    table = names["events"].to_pydict()
    assert (table["request_id"], table["item"]) == (["r-1", "r-1"], ["v1", "v2"])
    assert (table["click"], table["like"], table["watch_time"]) == ([1.0, None], [None, 0.0], [12.5, None])
    assert table["time"][0] == datetime.fromisoformat(lines(folder)[0]["received"])
    assert table["time"][1] == datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


def test_feedback_of_a_key_beyond_its_quota_is_429_and_of_another_key_is_accepted(
    repository: Path, folder: Path, key_file: Path
) -> None:
    keys = {name: {"X-API-Key": create_key(key_file, name, ("feedback",))} for name in ("shop", "app")}
    settings = Settings(repository=repository, keys=key_file, feedback_dir=folder, max_log_bytes=2_000)
    with TestClient(create_app(settings)) as client:
        statuses = [client.post("/v1/feedback", json=BODY, headers=keys["shop"]).status_code for _ in range(20)]
        assert 3 < statuses.index(429) < 12
        assert set(statuses) == {202, 429}
        rejected = client.post("/v1/feedback", json=BODY, headers=keys["shop"])
        assert "API key 'shop' has reached its quota until its files are collected" in rejected.json()["detail"]
        assert int(rejected.headers["retry-after"]) >= 1
        assert client.post("/v1/feedback", json=BODY, headers=keys["app"]).status_code == 202
        outcomes = metrics_of(client)
    assert outcomes["ranker_feedback_requests_total,outcome=key_quota"] == 21 - statuses.index(429)
    assert sum(file.stat().st_size for file in folder.glob("*-shop.jsonl")) <= 1_000


def test_feedback_rejected_by_a_quota_is_not_read(repository: Path, folder: Path) -> None:
    settings = Settings(repository=repository, feedback_dir=folder, max_log_bytes=10)
    with TestClient(create_app(settings)) as client:
        response = client.post("/v1/feedback", content=b"{" * 20, headers={"Content-Type": "application/json"})
    assert response.status_code == 503
    assert "max_log_bytes is 10" in response.json()["detail"]


def test_feedback_after_the_folder_was_removed_is_written_to_a_new_one(
    feedback_client: TestClient, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert feedback_client.post("/v1/feedback", json=BODY).status_code == 202
    shutil.rmtree(folder)
    assert feedback_client.post("/v1/feedback", json=BODY).status_code == 202
    assert len(lines(folder)) == 1
    assert any("was deleted while it was written" in message for message in caplog.messages)


def test_feedback_after_the_folder_became_a_file_is_503(
    feedback_client: TestClient, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert feedback_client.post("/v1/feedback", json=BODY).status_code == 202
    shutil.rmtree(folder)
    folder.touch()
    response = feedback_client.post("/v1/feedback", json=BODY)
    assert response.status_code == 503
    assert any(message.startswith("feedback cannot be written: ") for message in caplog.messages)
    folder.unlink()
    assert feedback_client.post("/v1/feedback", json=BODY).status_code == 202
