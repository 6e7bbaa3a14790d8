"""Releases under load: no request is rejected, and each response comes entirely from the version that it names."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ranking
from pipelines.jobs.release import change_release
from tests.support.expected_ranking import ExpectedRanking, draw_request
from tests.support.http_client import send_request
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS

CLIENTS, REQUESTS, LARGEST = 24, 2, 60


def send_requests(
    url: str, requests: list[dict[str, ExpectedRanking]], stop: threading.Event, versions: list[str]
) -> str | None:
    """Send requests as one client until stopped; append the versions that answer, and return the first fault."""
    while not stop.is_set():
        by_version = requests[len(versions) % len(requests)]
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT_SECONDS)
        connection.request("POST", "/v1/rank", by_version["1"].body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        version = json.loads(body).get("version")
        expected = by_version["1" if version is None else version]
        fault = expected.fault(response.status, body)
        if fault is not None:
            return fault
        versions.append(version)
    return None


@pytest.mark.parametrize(
    "releases",
    [pytest.param(4, marks=pytest.mark.system), pytest.param(30, marks=pytest.mark.nightly)],
)
def test_release_under_load_answers_each_request_from_one_version(repo: Path, releases: int) -> None:
    """Protects requests in progress while a release replaces the model; all clients wait for each release."""
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
    answered: list[list[str]] = [[] for _ in range(CLIENTS)]
    with running_service(repo, poll_seconds=0.2, threads=1) as service, ThreadPoolExecutor(CLIENTS) as pool:
        futures = [
            pool.submit(send_requests, service.url, requests, stop, versions)
            for requests, versions in zip(clients, answered, strict=True)
        ]
        try:
            for number in range(releases):
                version = 2 - number % 2
                if number % 4 < 2:
                    change_release(repo, "feed", {"version": version})
                else:
                    address = f"{service.url}/v2/repository/models/feed/release"
                    assert send_request(address, {"version": version}, method="PUT").status == 200
                expected = [[str(version)]] * CLIENTS
                service.wait_until(
                    lambda expected=expected: (
                        [versions[-1:] for versions in answered] == expected or any(future.done() for future in futures)
                    )
                )
        finally:
            stop.set()
        assert [fault for future in futures if (fault := future.result())] == []
