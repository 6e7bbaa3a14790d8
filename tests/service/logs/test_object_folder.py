"""Logs in object storage: the same rows as in a folder, and failures of the storage."""

from __future__ import annotations

import logging
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipelines.jobs import collect_objects as job
from ranking.artifacts.object_store import ObjectLocation, ObjectStore
from ranking.errors import ConfigError
from service.app import create_app
from service.logs import object_folder
from service.logs.feedback_log import WRITE_SECONDS
from service.settings import CLOSE_SECONDS, Settings, load_settings
from tests.support.joined_rows import joined_rows
from tests.support.metrics import metrics_of
from tests.support.ports import HOST, free_port
from tests.support.rank_request import rank
from tests.support.served_files import logged_ids
from tests.support.waiting import wait_until

SHOWN = datetime(2026, 1, 11, 12, tzinfo=UTC)
BODY = {"user": {"id": "u3"}, "time": SHOWN.isoformat(), "items": {"id": ["v0", "v1"]}}


def client_of(repository: Path, log: str | Path, **settings: Any) -> TestClient:
    return TestClient(create_app(Settings.model_validate({"repository": repository, "served_log": log, **settings})))


def test_collected_objects_join_to_the_same_rows_as_a_folder(repository: Path, location: str, tmp_path: Path) -> None:
    for log in (location, tmp_path / "folder"):
        with client_of(repository, log, served_log_seconds=1) as client:
            for number in range(10):
                rank(client, BODY, request_id=f"r{number}")
            wait_until(lambda client=client: metrics_of(client)["ranker_served_requests_total"] > 0)
            for number in range(10, 20):
                rank(client, BODY, request_id=f"r{number}")
    assert job.collect_objects(ObjectLocation(location), tmp_path / "objects") >= 2
    rows = joined_rows(tmp_path / "objects", tmp_path / "a")
    assert rows == joined_rows(tmp_path / "folder", tmp_path / "b")
    assert len(rows) == 40


def test_collected_feedback_labels_the_same_rows_as_that_of_a_folder(
    repository: Path, location: str, tmp_path: Path
) -> None:
    served, shown = tmp_path / "served", datetime.now(UTC) - timedelta(hours=2)
    for target in (location, tmp_path / "folder"):
        shutil.rmtree(served, ignore_errors=True)
        with client_of(repository, served, feedback_dir=target) as client:
            for number in range(20):
                rank(client, BODY | {"time": shown.isoformat()}, request_id=f"r{number}")
                event = {"item": "v1", "labels": {"click": number % 2}, "time": shown.isoformat()}
                response = client.post("/v1/feedback", json={"request_id": f"r{number}", "events": [event]})
                assert (response.status_code, response.json()) == (202, {"accepted": 1})
    assert job.collect_objects(ObjectLocation(location), tmp_path / "objects") == 1
    rows = joined_rows(served, tmp_path / "b", tmp_path / "folder")
    assert sum(row["click"] or 0 for row in rows) == 10
    assert joined_rows(served, tmp_path / "a", tmp_path / "objects") == rows


def test_objects_hold_a_bounded_number_of_bytes(
    repository: Path, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.logs.served_log.FILE_BYTES", 30_000)
    with client_of(repository, location) as client:
        for number in range(60):
            rank(client, BODY, request_id=f"r{number}", items={"id": [f"v{i}" for i in range(1 + number % 40)]})
    assert job.collect_objects(ObjectLocation(location), tmp_path) > 2
    assert sorted(logged_ids(tmp_path)) == sorted(f"r{number}" for number in range(60))


def test_storage_that_fails_costs_counted_requests_and_feedback_but_not_rankings(
    repository: Path,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "ranker.service")
    monkeypatch.setattr(object_folder, "DELIVERY_SECONDS", 1.0)
    body = {"request_id": "r", "events": [{"item": "v1", "labels": {"click": 1}}]}
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{free_port()}")
        settings = {"feedback_dir": f"{location}/feedback", "served_log_seconds": 1}
        with client_of(repository, f"{location}/served", **settings) as client:
            rank(client, BODY, request_id="lost")
            assert client.post("/v1/feedback", json=body).status_code == 503
            wait_until(lambda: metrics_of(client)["ranker_served_dropped_total,reason=write_failed"] == 1)
            assert metrics_of(client)["ranker_feedback_failures_total,operation=write"] == 1
    for start, part in (("feedback cannot be written", "feedback"), ("the served log drops requests", "served")):
        (line,) = [message for message in caplog.messages if message.startswith(start)]
        assert f"{location}/{part}/" in line
        assert "cannot be accessed" in line
    assert ObjectStore(location).paths("served") == []


def test_location_of_both_logs_is_an_error(repository: Path) -> None:
    variables = {"RANKER_SERVED_LOG": "s3://shop/log", "RANKER_FEEDBACK_DIR": "s3://shop/log/"}
    with pytest.raises(ConfigError, match="served_log and feedback_dir are both s3://shop/log: use"):
        load_settings({"repository": repository}, environ=variables)


@pytest.mark.parametrize("location", ["s3://", "s3://shop/a b", "gs://shop/../x", "s3:/shop/x"])
def test_invalid_location_is_an_error_that_shows_the_form(repository: Path, location: str) -> None:
    with pytest.raises(ConfigError, match="write s3://BUCKET/PATH") as caught:
        load_settings({"repository": repository}, environ={"RANKER_SERVED_LOG": location})
    assert "\n" not in str(caught.value)


def test_missing_client_is_an_error_that_names_the_extra(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    settings = Settings.model_validate({"repository": repository, "served_log": "s3://shop/served"})
    with pytest.raises(ConfigError, match=r"served_log = s3://shop/served needs .* 'dselect-ranker\[object-storage\]'"):
        create_app(settings)


def test_feedback_that_is_stored_late_is_in_the_location_before_it_counts_as_complete() -> None:
    assert job.LATE.total_seconds() > WRITE_SECONDS + object_folder.DELIVERY_SECONDS + 1


def test_last_write_ends_within_the_time_to_close() -> None:
    assert object_folder.DELIVERY_SECONDS + 1 < CLOSE_SECONDS
