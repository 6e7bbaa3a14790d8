"""Clients that retry after a 429: those that ignore ``Retry-After`` are closed, those that wait are answered."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.engine import engine
from service.protocol.problems import RETRY_AFTER_SECONDS
from service.server.protocol import MAX_EARLY_RETRIES
from tests.support.http_client import post_json
from tests.support.ports import HOST
from tests.support.server_thread import BlockedScorer, server_thread
from tests.support.waiting import TIMEOUT_SECONDS

BODY = json.dumps({"items": [{"id": "v1"}]})


@contextmanager
def full_server(repository: Path, scorer: BlockedScorer) -> Iterator[int]:
    """A server whose queue is full until ``scorer.release`` is set; yield its port."""
    with server_thread(repository, max_queue_requests=1) as port:
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


def test_connection_that_ignores_retry_after_is_closed(repository: Path, scorer: BlockedScorer) -> None:
    with full_server(repository, scorer) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        start, closed = time.monotonic(), []
        while not any(closed):
            response = retry(connection)
            assert response.status == 429
            assert response.headers["Retry-After"] == str(RETRY_AFTER_SECONDS)
            closed.append(response.headers["Connection"] == "close")
            assert len(closed) <= MAX_EARLY_RETRIES + 2 + (time.monotonic() - start) / RETRY_AFTER_SECONDS
        assert len(closed) >= MAX_EARLY_RETRIES + 2
        connection.close()
        assert retry(connection).status == 429, "a new connection is served"
        connection.close()


def test_connection_that_waits_for_retry_after_is_kept_and_served(
    repository: Path, scorer: BlockedScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.server.protocol.MAX_EARLY_RETRIES", 0)
    with full_server(repository, scorer) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        for _ in range(3):
            response = retry(connection)
            assert response.status == 429
            assert response.headers["Connection"] is None
            time.sleep(RETRY_AFTER_SECONDS)
        scorer.release.set()
        while (response := retry(connection)).status == 429:
            assert response.headers["Connection"] is None
            time.sleep(RETRY_AFTER_SECONDS)
        assert response.status == 200
        connection.close()


def test_admitted_request_ends_the_count_of_early_retries(repository: Path, scorer: BlockedScorer) -> None:
    with full_server(repository, scorer) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        early = MAX_EARLY_RETRIES // 2
        for _ in range(early):
            assert retry(connection).headers["Connection"] is None
        scorer.release.set()
        while retry(connection).status == 429:
            time.sleep(RETRY_AFTER_SECONDS)
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
