"""Releases under load: no request is rejected, and each response comes entirely from the version that it names."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ranking
from pipelines.jobs.demo import service
from pipelines.jobs.release import change_release
from tests.service.test_under_load import Asked, draw

CLIENTS, REQUESTS, LARGEST = 32, 8, 60
SECONDS = 60


def send_requests(url: str, requests: list[dict[str, Asked]], stop: threading.Event) -> tuple[list[str], str | None]:
    """Send requests as one client until stopped; return the versions that answered and the first fault."""
    versions: list[str] = []
    while not stop.is_set():
        asked = requests[len(versions) % len(requests)]
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/rank", asked["1"].body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        version = json.loads(answer).get("version")
        fault = asked["1"].fault(response.status, answer) if version is None else asked[version].fault(200, answer)
        if fault is not None:
            stop.set()
            return versions, fault
        versions.append(version)
    return versions, None


def put_release(url: str, version: int) -> int:
    """Release a version over HTTP and return the status of the response."""
    address = f"{url}/v2/repository/models/feed/release"
    body = json.dumps({"version": version}).encode()
    with urllib.request.urlopen(urllib.request.Request(address, body, method="PUT"), timeout=60) as response:
        return int(response.status)


@pytest.mark.slow
def test_release_under_load_answers_each_request_from_one_version(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rankers = {version: ranking.load(repo / "feed" / version) for version in ("1", "2")}
    clients = []
    for client in range(CLIENTS):
        draws = {version: np.random.default_rng(client) for version in rankers}
        names = [f"client {client} request {r}" for r in range(REQUESTS)]
        clients.append([{v: draw(rankers[v], draws[v], name, LARGEST) for v in rankers} for name in names])
    asked = clients[0][0]
    assert asked["1"].body == asked["2"].body
    assert not np.allclose(list(asked["1"].scores.values()), list(asked["2"].scores.values()), atol=1e-3)
    monkeypatch.setenv("RANKER_POLL_SECONDS", "0.2")
    monkeypatch.setenv("RANKER_THREADS", "1")
    stop = threading.Event()
    with service(repo) as url, ThreadPoolExecutor(CLIENTS) as pool:
        futures = [pool.submit(send_requests, url, requests, stop) for requests in clients]
        try:
            for second in range(SECONDS):
                began = time.monotonic()
                version = 2 - second % 2
                if second % 4 < 2:
                    change_release(repo, "feed", {"version": version})
                else:
                    assert put_release(url, version) == 200
                stop.wait(max(0.0, began + 1.0 - time.monotonic()))
        finally:
            stop.set()
        results = [future.result() for future in futures]
    assert [fault for _, fault in results if fault] == []
    for versions, _ in results:
        assert sum(a != b for a, b in itertools.pairwise(versions)) >= 10
