"""Clients that retry after a 429: those that ignore ``Retry-After`` are closed, those that wait are answered."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.attacks import RETRIES
from service.engine import engine
from service.protocol.problems import RETRY_AFTER_SECONDS
from service.server import protocol
from service.server.pacing import EARLY_SECONDS
from service.server.protocol import MAX_EARLY_RETRIES
from service.settings import ROWS_PER_REQUEST
from tests.support.http_client import post_json
from tests.support.ports import HOST
from tests.support.processes import ServiceProcess, running_service
from tests.support.server_thread import BlockedScorer, server_thread, wait_for_metric
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

BODY = json.dumps({"items": [{"id": "v1"}]})
RETRYING, ROOM = 300, 60
"""Number of clients that retry at once, and the maximum number of admitted requests."""
CLIENT_KINDS: dict[str, dict[str, Any]] = {
    "waits for Retry-After": {"keep_alive": True, "pause": 0.0},
    "sends one request per second": {"keep_alive": True, "pause": 1.0},
    "opens a connection for each request": {"keep_alive": False, "pause": 1.0},
}
"""Clients that wait → arguments of ``send_with_retries``."""


@contextmanager
def full_server(repository: Path, scorer: BlockedScorer, requests: int = 1) -> Iterator[int]:
    """A server that admits so many requests until ``scorer.release`` is set; yield its port."""
    with server_thread(repository, max_queue_rows=requests * ROWS_PER_REQUEST) as port:
        url = f"http://{HOST}:{port}/v1/rank"
        first = threading.Thread(target=lambda: post_json(url, json.loads(BODY)))
        first.start()
        try:
            assert scorer.started.wait(TIMEOUT_SECONDS)
            yield port
        finally:
            scorer.release.set()
            first.join()


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> BlockedScorer:
    scorer = BlockedScorer()
    monkeypatch.setattr(engine, "score_batch", scorer)
    return scorer


def retry(connection: http.client.HTTPConnection) -> Any:
    """Send a request on an open connection and return its response, which is read."""
    connection.request("POST", "/v1/rank", BODY, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    return response


@pytest.fixture
def always_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every request after a response count as one before ``Retry-After``, also if the machine was paused."""
    monkeypatch.setattr(protocol, "EARLY_SECONDS", 3_600.0)


@pytest.mark.usefixtures("always_early")
def test_connection_that_ignores_retry_after_is_closed(repository: Path, scorer: BlockedScorer) -> None:
    with full_server(repository, scorer) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        closed = []
        while not any(closed):
            response = retry(connection)
            assert response.status == 429
            assert response.headers["Retry-After"] == str(RETRY_AFTER_SECONDS)
            closed.append(response.headers["Connection"] == "close")
        assert len(closed) == MAX_EARLY_RETRIES + 2
        connection.close()
        assert retry(connection).status == 429, "a new connection is served"
        connection.close()


def test_connection_that_waits_for_retry_after_is_kept_and_served(
    repository: Path, scorer: BlockedScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_EARLY_RETRIES", 0)
    monkeypatch.setattr(protocol, "EARLY_SECONDS", EARLY_SECONDS / 10)
    seconds = RETRY_AFTER_SECONDS / 10
    with full_server(repository, scorer) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        for _ in range(3):
            response = retry(connection)
            assert response.status == 429
            assert response.headers["Connection"] is None
            time.sleep(seconds)
        scorer.release.set()
        while (response := retry(connection)).status == 429:
            assert response.headers["Connection"] is None
            time.sleep(seconds)
        assert response.status == 200
        connection.close()


@pytest.mark.usefixtures("always_early")
def test_admitted_request_ends_the_count_of_early_retries(repository: Path, scorer: BlockedScorer) -> None:
    with full_server(repository, scorer) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        for _ in range(MAX_EARLY_RETRIES // 2):
            assert retry(connection).headers["Connection"] is None
        scorer.release.set()
        wait_for_metric(port, "ranker_queue_rows", 0)
        assert retry(connection).status == 200
        scorer.release.clear()
        scorer.started.clear()
        blocking = threading.Thread(target=post_json, args=[f"http://{HOST}:{port}/v1/rank", json.loads(BODY)])
        blocking.start()
        assert scorer.started.wait(TIMEOUT_SECONDS)
        for _ in range(MAX_EARLY_RETRIES):
            response = retry(connection)
            assert response.status == 429
            assert response.headers["Connection"] is None
        scorer.release.set()
        blocking.join()
        connection.close()


@pytest.mark.usefixtures("always_early")
def test_queue_keeps_room_for_connections_that_wait_between_requests(repository: Path, scorer: BlockedScorer) -> None:
    blocked = []
    with full_server(repository, scorer, requests=8) as port, ExitStack() as stack:

        def connect() -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
            stack.callback(connection.close)
            return connection

        def send_blocked(connection: http.client.HTTPConnection) -> None:
            connection.request("POST", "/v1/rank", BODY, {"Content-Type": "application/json"})
            blocked.append(connection)

        busy, waiting = connect(), connect()
        for _ in range(6):
            send_blocked(connect())
        wait_for_metric(port, "ranker_queue_rows", 7)
        busy.request("GET", "/v2/health/live")
        busy.getresponse().read()
        assert retry(busy).status == 429, "it has not waited since its last response"
        send_blocked(waiting)
        scorer.release.set()
        assert [connection.getresponse().status for connection in blocked] == [200] * 7


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the clients that retry at once need their own core")
@pytest.mark.parametrize(
    ("requests", "max_retries", "share"),
    [
        pytest.param(2, 60, 1.0, marks=pytest.mark.system, id="all in the end"),
        pytest.param(8, 2, 0.5, marks=[pytest.mark.system, pytest.mark.nightly], id="half with two retries each"),
    ],
)
def test_clients_that_wait_are_answered_beside_many_that_retry_at_once(
    repository: Path, requests: int, max_retries: int, share: float
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    settings = {"max_queue_rows": ROOM * ROWS_PER_REQUEST, "threads": 1, "backend": "onnxruntime"}
    with running_service(repository, cores={cores[0]}, **settings) as service:
        command = [sys.executable, "-m", "benchmarks.serving.attacks", RETRIES, str(service.port), str(RETRYING)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as attack:
            try:
                assert attack.stdout is not None
                assert attack.stdout.readline()
                wait_until(lambda: rejections(service) > 2 * RETRYING, "the clients are rejected")
                with ThreadPoolExecutor(2 * len(CLIENT_KINDS)) as pool:
                    arguments = (service.port, requests, max_retries)
                    outcomes = {
                        kind: [pool.submit(send_with_retries, *arguments, **options) for _ in range(2)]
                        for kind, options in CLIENT_KINDS.items()
                    }
                before = rejections(service)
                wait_until(lambda: rejections(service) > before, "the attack goes on")
            finally:
                attack.kill()
    for kind, futures in outcomes.items():
        assert sum(future.result() for future in futures) >= share * len(futures) * requests, kind


def rejections(service: ServiceProcess) -> float:
    return service.metrics().get("ranker_rejections_total,reason=queue_full", 0.0)


def send_with_retries(port: int, requests: int, max_retries: int, *, keep_alive: bool, pause: float) -> int:
    """Send requests that wait between retries, and return the number of those that are answered.

    Args:
        port: port of the service.
        requests: number of requests.
        max_retries: maximum number of retries of each.
        keep_alive: whether to use one connection for all requests, instead of one each.
        pause: seconds between an answer and the next request.
    """
    connection, answered = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS), 0
    for _ in range(requests):
        for _ in range(1 + max_retries):
            status = retry(connection).status
            assert status in (200, 429)
            if not keep_alive:
                connection.close()
            if status == 200:
                answered += 1
                time.sleep(pause)
                break
            time.sleep(RETRY_AFTER_SECONDS)
    connection.close()
    return answered
