"""Releases under load: no request is rejected, and each response comes entirely from the version that it names."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ranking
from pipelines.jobs.release import change_release
from tests.support.expected_ranking import ExpectedRanking, draw_request
from tests.support.http_client import send_request
from tests.support.processes import running_service

CLIENTS, REQUESTS, LARGEST = 32, 8, 60
SECONDS = 30


def send_requests(
    url: str, requests: list[dict[str, ExpectedRanking]], stop: threading.Event
) -> tuple[list[str], str | None]:
    """Send requests as one client until stopped; return the versions that answered and the first fault."""
    versions: list[str] = []
    while not stop.is_set():
        by_version = requests[len(versions) % len(requests)]
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/rank", by_version["1"].body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        version = json.loads(body).get("version")
        expected = by_version["1" if version is None else version]
        fault = expected.fault(response.status, body)
        if fault is not None:
            stop.set()
            return versions, fault
        versions.append(version)
    return versions, None


@pytest.mark.slow
def test_release_under_load_answers_each_request_from_one_version(repo: Path) -> None:
    rankers = {version: ranking.load(repo / "feed" / version) for version in ("1", "2")}
    clients = []
    for client in range(CLIENTS):
        draws = {version: np.random.default_rng(client) for version in rankers}
        names = [f"client {client} request {r}" for r in range(REQUESTS)]
        clients.append([{v: draw_request(rankers[v], draws[v], name, LARGEST) for v in rankers} for name in names])
    by_version = clients[0][0]
    assert by_version["1"].body == by_version["2"].body
    scores = {version: list(expected.scores.values()) for version, expected in by_version.items()}
    assert not np.allclose(scores["1"], scores["2"], atol=1e-3)
    stop = threading.Event()
    with running_service(repo, poll_seconds=0.2, threads=1) as service, ThreadPoolExecutor(CLIENTS) as pool:
        futures = [pool.submit(send_requests, service.url, requests, stop) for requests in clients]
        try:
            for second in range(SECONDS):
                start = time.monotonic()
                release = {"version": 2 - second % 2}
                if second % 4 < 2:
                    change_release(repo, "feed", release)
                else:
                    address = f"{service.url}/v2/repository/models/feed/release"
                    assert send_request(address, release, method="PUT").status == 200
                stop.wait(max(0.0, start + 1.0 - time.monotonic()))
        finally:
            stop.set()
        results = [future.result() for future in futures]
    assert [fault for _, fault in results if fault] == []
    for versions, _ in results:
        assert sum(a != b for a, b in itertools.pairwise(versions)) >= 10
