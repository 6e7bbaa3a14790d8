"""Logs in object storage: the same rows as in a folder, and failures of the storage."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

import pytest

from pipelines.jobs import collect_objects as job
from ranking.artifacts.object_store import ObjectLocation, ObjectStore
from ranking.errors import ConfigError
from service.app import create_app
from service.logs import object_folder
from service.logs.feedback_log import WRITE_SECONDS
from service.settings import CLOSE_SECONDS, Settings, load_settings
from tests.service.logs.collected_logs import BODY, check_feedback, check_served_log, client_of
from tests.support.metrics import metrics_of
from tests.support.ports import HOST, free_port
from tests.support.rank_request import rank
from tests.support.served_files import logged_ids
from tests.support.waiting import wait_until


def test_collected_objects_join_to_the_same_rows_as_a_folder(repository: Path, location: str, tmp_path: Path) -> None:
    check_served_log(repository, location, partial(job.collect_objects, ObjectLocation(location)), tmp_path)


@pytest.mark.nightly(short="test_collected_objects_join_to_the_same_rows_as_a_folder")
def test_collected_feedback_labels_the_same_rows_as_that_of_a_folder(
    repository: Path, location: str, tmp_path: Path
) -> None:
    collect = partial(job.collect_objects, ObjectLocation(location))
    assert check_feedback(repository, location, collect, tmp_path) == 1


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
