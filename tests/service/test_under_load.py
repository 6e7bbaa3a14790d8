"""A service process with many concurrent clients: every response is correct and belongs to its request."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ranking import FrozenRanker
from tests.support.expected_ranking import ExpectedRanking, draw_request
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS

CLIENTS, REQUESTS = 32, 4
MAX_QUEUE_ROWS = 100_000
"""More than the candidates of all clients at once."""


def send_requests(url: str, requests: list[ExpectedRanking], rounds: int, failed: threading.Event) -> str | None:
    """Send requests as one client, repeatedly or until any client finds a fault; return the fault."""
    for expected in requests * rounds:
        if failed.is_set():
            break
        # The server may close a kept-alive connection while the other clients hold the interpreter.
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=TIMEOUT_SECONDS)
        connection.request("POST", "/v1/rank", expected.body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        fault = expected.fault(response.status, response.read())
        connection.close()
        if fault is not None:
            failed.set()
            return fault
    return None


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(2, marks=pytest.mark.system), pytest.param(15, marks=[pytest.mark.system, pytest.mark.nightly])],
)
def test_responses_under_load_are_correct_and_belong_to_their_requests(
    repository: Path, ranker: FrozenRanker, rounds: int
) -> None:
    """Batches of many requests must not mix up their scores."""
    random = np.random.default_rng(0)
    clients = [
        [draw_request(ranker, random, f"client {c} request {r}", 300 if r else 1500) for r in range(REQUESTS)]
        for c in range(CLIENTS)
    ]
    failed = threading.Event()
    with running_service(repository, max_queue_rows=MAX_QUEUE_ROWS) as service, ThreadPoolExecutor(CLIENTS) as pool:
        futures = [pool.submit(send_requests, service.url, requests, rounds, failed) for requests in clients]
        assert [fault for future in futures if (fault := future.result())] == []


def response_body(expected: ExpectedRanking, rows: list[npt.NDArray[np.float64]]) -> bytes:
    """Return a sorted response with these scores."""
    items = [
        {"id": item, "score": total, "scores": dict(zip(expected.tasks, row.tolist(), strict=True))}
        for (item, total), row in zip(expected.totals.items(), rows, strict=True)
    ]
    items.sort(key=lambda item: -item["score"])
    return json.dumps({"request_id": expected.request_id, "items": items}).encode()


def test_expected_ranking_detects_scores_of_another_request_or_candidate(ranker: FrozenRanker) -> None:
    random = np.random.default_rng(0)
    first, second = (draw_request(ranker, random, f"request {r}", 300) for r in range(2))
    rows = list(first.scores.values())
    assert first.fault(200, response_body(first, rows)) is None
    assert first.fault(200, response_body(first, [*rows[1:], rows[0]])) is not None
    other_rows = [np.resize(row, len(first.tasks)) for row in second.scores.values()]
    repeated = list(itertools.islice(itertools.cycle(other_rows), len(rows)))
    assert first.fault(200, response_body(first, repeated)) is not None
    assert first.fault(200, response_body(replace(first, request_id="another"), rows)) is not None
