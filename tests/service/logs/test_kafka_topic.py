"""Logs in a Kafka topic: the same rows as in a folder, failures of the broker, and limits of messages."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import SERVED
from ranking.errors import ConfigError
from service.app import create_app
from service.logs.feedback_log import WRITE_SECONDS
from service.logs.sink import LogSink
from service.models.watcher import STOP_SECONDS
from service.settings import CLOSE_SECONDS, KILL_MARGIN_SECONDS, Settings, load_settings
from service.telemetry.tracing import FLUSH_SECONDS
from tests.service.logs.collected_logs import BODY, check_feedback, check_served_log, client_of
from tests.support.http_client import send_request
from tests.support.kafka_broker import KafkaBroker, kafka_broker
from tests.support.metrics import metrics_of
from tests.support.ports import HOST, free_port
from tests.support.processes import running_service
from tests.support.rank_request import rank
from tests.support.served_files import logged_ids
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with kafka_broker() as running:
        yield running


def collected(address: str, folder: Path) -> int:
    from pipelines.jobs.collect import collect

    return collect(KafkaAddress.parse(address), folder, "test")


def test_collected_topic_joins_to_the_same_rows_as_a_folder(
    broker: KafkaBroker, repository: Path, tmp_path: Path
) -> None:
    address = broker.create_topic("rows", partitions=2)
    check_served_log(repository, address, partial(collected, address), tmp_path)


@pytest.mark.nightly(short="test_collected_topic_joins_to_the_same_rows_as_a_folder")
def test_feedback_of_a_collected_topic_labels_the_same_rows_as_that_of_a_folder(
    broker: KafkaBroker, repository: Path, tmp_path: Path
) -> None:
    address = broker.create_topic("feedback", partitions=2)
    assert check_feedback(repository, address, partial(collected, address), tmp_path) >= 1


@pytest.mark.system
def test_feedback_without_a_broker_is_answered_503_and_with_it_202(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")
    monkeypatch.setattr(kafka, "DELIVERY_SECONDS", 1.0)
    body = {"request_id": "r", "events": [{"item": "v1", "labels": {"click": 1}}]}
    with kafka_broker() as broker:
        address = broker.create_topic("feedback")
        with client_of(repository, tmp_path / "served", feedback_dir=address) as client:
            broker.stop()
            response = client.post("/v1/feedback", json=body)
            assert (response.status_code, response.headers["Retry-After"]) == (503, "10")
            assert metrics_of(client)["ranker_feedback_failures_total,operation=write"] == 1
            broker.start()  # creates unknown topics
            wait_until(lambda: client.post("/v1/feedback", json=body).status_code == 202)
    (line,) = [message for message in caplog.messages if message.startswith("feedback cannot be written")]
    assert f"{address}: not acknowledged within 1 s" in line


def test_topic_of_both_logs_is_an_error(repository: Path) -> None:
    variables = {"RANKER_SERVED_LOG": "kafka://a:9092/log", "RANKER_FEEDBACK_DIR": "kafka://b:9092,a:9092/log"}
    with pytest.raises(ConfigError, match="served_log and feedback_dir both name the topic 'log'"):
        load_settings({"repository": repository}, environ=variables)


def test_feedback_larger_than_a_message_is_answered_413(
    broker: KafkaBroker, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")
    monkeypatch.setattr(kafka, "MAX_REQUEST_BYTES", 1_000)
    address = broker.create_topic("large-feedback")
    events = [{"item": f"v{number}", "labels": {"click": 1}} for number in range(40)]
    with client_of(repository, tmp_path / "served", feedback_dir=address) as client:
        response = client.post("/v1/feedback", json={"request_id": "r", "events": events})
        assert response.status_code == 413
        assert "exceed the 1000 bytes of a Kafka message; send fewer events at a time" in response.json()["detail"]
        assert client.post("/v1/feedback", json={"request_id": "r", "events": events[:5]}).status_code == 202
        assert metrics_of(client)["ranker_feedback_events_total,outcome=rejected,reason=too_large"] == 40


@pytest.mark.system
def test_stopped_broker_costs_counted_requests_but_not_rankings(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")

    monkeypatch.setattr(kafka, "DELIVERY_SECONDS", 2.0)
    caplog.set_level(logging.ERROR, "ranker.service")
    with kafka_broker() as broker:
        address = broker.create_topic("served")
        with client_of(repository, address, served_log_seconds=1) as client:
            rank(client, BODY, request_id="before")
            wait_until(lambda: metrics_of(client)["ranker_served_requests_total"] == 1)
            assert collected(address, tmp_path) == 1
            broker.stop()
            for number in range(5):
                rank(client, BODY, request_id=f"lost-{number}")
            wait_until(lambda: metrics_of(client)["ranker_served_dropped_total,reason=write_failed"] == 5)
            broker.start()
            broker.create_topic("served")
            rank(client, BODY, request_id="after")
            wait_until(lambda: metrics_of(client)["ranker_served_requests_total"] == 2)
        assert collected(address, tmp_path / "after") == 1
    assert logged_ids(tmp_path / "after") == ["after"]
    (line,) = [message for message in caplog.messages if "drops requests" in message]
    assert "not acknowledged within 2 s" in line
    assert "check the address" in line


def test_files_fit_into_messages(
    broker: KafkaBroker, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")

    monkeypatch.setattr(kafka, "MAX_REQUEST_BYTES", 30_000)
    address = broker.create_topic("sizes")
    with client_of(repository, address) as client:
        for number in range(60):
            rank(client, BODY, request_id=f"r{number}", items={"id": [f"v{i}" for i in range(1 + number % 40)]})
    assert collected(address, tmp_path) > 2
    assert sorted(logged_ids(tmp_path)) == sorted(f"r{number}" for number in range(60))
    for file in tmp_path.iterdir():
        assert pq.ParquetFile(file).read().nbytes <= 30_000


def test_stopping_without_a_server_ends_within_the_limit(
    repository: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")

    monkeypatch.setattr(kafka, "DELIVERY_SECONDS", 1.0)
    caplog.set_level(logging.ERROR, "ranker.service")
    with client_of(repository, f"kafka://{HOST}:{free_port()}/served") as client:
        rank(client, BODY, request_id="lost")
    (line,) = caplog.messages  # none says that requests were lost because the destination did not respond
    assert "drops requests" in line
    assert "Connection refused" in line
    assert "check the address, the servers and the network" in line


@pytest.mark.parametrize(
    "workers",
    [pytest.param(1, marks=[pytest.mark.system, pytest.mark.nightly]), pytest.param(2, marks=pytest.mark.system)],
)
def test_stopping_with_a_silent_server_ends_before_the_kill(repository: Path, tmp_path: Path, workers: int) -> None:
    """A client holds the shutdown for all grace seconds. Then the writers must not add up their times."""
    kafka = pytest.importorskip("service.logs.kafka_topic")
    settings = {"workers": workers, "threads": 1, "feedback_dir": tmp_path, "served_log_seconds": 600}
    with socket.create_server((HOST, 0)) as silent, ExitStack() as stack:
        log = f"kafka://{HOST}:{silent.getsockname()[1]}/served"
        service = stack.enter_context(running_service(repository, served_log=log, grace_seconds=1, **settings))
        assert send_request(f"{service.url}/v1/rank", BODY).status == 200
        with service.connect() as client:
            client.sendall(b"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            service.process.terminate()
            begin = time.monotonic()
            assert service.process.wait(TIMEOUT_SECONDS) == 0
        assert kafka.DELIVERY_SECONDS < time.monotonic() - begin < 1 + KILL_MARGIN_SECONDS
        assert "not acknowledged within 8 s" in service.output()


def test_feedback_that_is_acknowledged_late_is_in_the_topic_before_it_counts_as_complete() -> None:
    kafka, job = pytest.importorskip("service.logs.kafka_topic"), pytest.importorskip("pipelines.jobs.collect")
    assert job.LATE.total_seconds() > WRITE_SECONDS + kafka.DELIVERY_SECONDS + 1


def test_parts_close_within_the_limit() -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")
    # A message has one second more than its delivery, for the report of the failure.
    assert max(kafka.DELIVERY_SECONDS + 1, STOP_SECONDS, FLUSH_SECONDS) < CLOSE_SECONDS


def test_invalid_address_is_an_error_that_shows_the_form(repository: Path) -> None:
    with pytest.raises(ConfigError, match="write kafka://HOST:PORT") as caught:
        load_settings({"repository": repository}, environ={"RANKER_SERVED_LOG": "kafka://broker/served"})
    assert "\n" not in str(caught.value)


def test_missing_client_is_an_error_that_names_the_extra(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "service.logs.kafka_topic", raising=False)
    settings = Settings.model_validate({"repository": repository, "served_log": "kafka://broker:9092/served"})
    with pytest.raises(ConfigError, match=r"pip install 'dselect-ranker\[kafka\]'"):
        create_app(settings)


class _UnknownTopic:
    def __init__(self, *_: Any) -> None:
        self._deliver: Any = None

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        self._deliver = on_delivery

    def flush(self, _: float) -> None:
        from confluent_kafka import KafkaError

        self._deliver(KafkaError(KafkaError._UNKNOWN_TOPIC), None)


def topic(kafka: Any) -> LogSink:
    advice = "leave out columns with served_log_exclude"
    sink: LogSink = kafka.KafkaTopic(KafkaAddress("broker:9092", "served"), SERVED, advice)
    return sink


def test_unknown_topic_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")
    monkeypatch.setattr(kafka, "Producer", _UnknownTopic)  # the broker of the tests creates unknown topics
    with pytest.raises(OSError, match="the cluster has no topic 'served': create it"):
        topic(kafka).write(memoryview(b"file"))


def test_request_larger_than_a_message_is_an_error_that_names_the_setting() -> None:
    kafka = pytest.importorskip("service.logs.kafka_topic")
    with pytest.raises(OSError, match="leave out columns with served_log_exclude"):
        topic(kafka).write(memoryview(bytes(1_000_001)))
