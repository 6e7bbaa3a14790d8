"""A real process and many clients at once: every answer is held against the library, none may be wrong or another's."""

from __future__ import annotations

import dataclasses
import http.client
import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipelines.jobs.demo import service
from ranking import FrozenRanker

CLIENTS, REQUESTS = 32, 8
SECONDS = 20.0 if os.environ.get("CI") else 60.0
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request and the only right answer to it.

    Attributes:
        body: what is posted.
        name: its request_id.
        tasks: that it asks for.
        scores: candidate → scores of these tasks, from the library.
        total: candidate → weighted sum.
    """

    body: bytes
    name: str
    tasks: list[str]
    scores: dict[str, npt.NDArray[np.float64]]
    total: dict[str, float]

    def fault(self, status: int, answer: bytes) -> str | None:
        """What is wrong with an answer, None if nothing."""
        if status != 200:
            return f"{self.name}: {status} {answer[:200]!r}"
        document = json.loads(answer)
        if document["request_id"] != self.name:
            return f"{self.name}: the answer to {document['request_id']}"
        items = document["items"]
        if sorted(item["id"] for item in items) != sorted(self.scores):
            return f"{self.name}: other candidates than were asked for"
        totals = [item["score"] for item in items]
        if totals != sorted(totals, reverse=True):
            return f"{self.name}: not in order"
        if any(list(item["scores"]) != self.tasks for item in items):
            return f"{self.name}: other tasks than were asked for"
        found = np.array([[item["score"], *item["scores"].values()] for item in items])
        expected = np.array([[self.total[item["id"]], *self.scores[item["id"]]] for item in items])
        wrong = ~np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE).all(1)
        if wrong.any():
            first = int(np.argmax(wrong))
            return f"{self.name}: {wrong.sum()} candidates are wrong, as {items[first]}, not {expected[first]}"
        return None


def draw(ranker: FrozenRanker, random: np.random.Generator, name: str, largest: int) -> Asked:
    """A request of 1 … ``largest`` candidates, no two alike, and some tasks."""
    count = int(random.integers(1, largest + 1))
    known = ranker.schema.task_names
    tasks = [known, known[:1], known[-2:]][random.integers(3)]  # few sets, so that requests share batches
    objective = {task: float(random.uniform(0.5, 2.0)) for task in tasks}
    ids = [f"v{i}" for i in random.choice(2 * largest, count, replace=False)]
    items = {"price": random.lognormal(1.0, 1.0, count).tolist(), "quality": random.normal(size=count).tolist()}
    user = {"age": float(random.uniform(15, 80))}
    context = {"surface": str(random.choice(["home", "search"])), "hour": int(random.integers(24))}
    body = {"request_id": name, "user": {"id": f"u{random.integers(400)}", "features": user}, "context": context}
    body |= {"items": {"id": ids, "features": items}, "tasks": tasks, "objective": objective}
    columns: dict[str, list[Any]] = {"item_id": ids, "user_id": [body["user"]["id"]] * count} | items
    columns |= {column: [value] * count for column, value in (user | context).items()}
    scored = ranker.score(pa.table(columns), tasks)
    rows = np.stack([scored[task].to_numpy() for task in tasks], axis=1).astype(np.float64)
    totals = (rows @ np.array([objective[task] for task in tasks])).tolist()
    scores = dict(zip(ids, rows, strict=True))
    return Asked(json.dumps(body).encode(), name, tasks, scores, dict(zip(ids, totals, strict=True)))


def talk(url: str, requests: list[Asked], until: float, failed: threading.Event) -> tuple[int, str | None]:
    """One client: asks again and again; how many answers were right, and the first fault."""
    right = 0
    while time.monotonic() < until and not failed.is_set():
        asked = requests[right % len(requests)]
        # kept alive, the server would close it while 31 others keep this thread waiting
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/rank", asked.body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        fault = asked.fault(response.status, response.read())
        connection.close()
        if fault is not None:
            failed.set()
            return right, fault
        right += 1
    return right, None


@pytest.mark.slow
def test_every_answer_under_load_is_right_and_for_its_own_request(
    repository: Path, ranker: FrozenRanker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKER_MAX_QUEUE_ROWS", "100000")  # all the clients' candidates at a time
    random = np.random.default_rng(0)
    clients = [
        [draw(ranker, random, f"client {c} request {r}", 300 if r else 1500) for r in range(REQUESTS)]
        for c in range(CLIENTS)
    ]
    failed = threading.Event()
    with service(repository) as url, ThreadPoolExecutor(CLIENTS) as pool:
        until = time.monotonic() + SECONDS
        talks = [pool.submit(talk, url, requests, until, failed) for requests in clients]
        results = [each.result() for each in talks]
    assert [fault for _, fault in results if fault] == []
    assert all(right > 0 for right, _ in results)


@pytest.mark.slow
def test_the_scores_of_another_request_or_candidate_would_be_noticed(ranker: FrozenRanker) -> None:
    random = np.random.default_rng(0)
    asked, other = (draw(ranker, random, f"request {r}", 300) for r in range(2))
    rows = list(asked.scores.values())
    assert asked.fault(200, answer(asked, rows)) is None
    assert asked.fault(200, answer(asked, [*rows[1:], rows[0]])) is not None
    others = [np.resize(row, len(asked.tasks)) for row in other.scores.values()]
    assert asked.fault(200, answer(asked, list(itertools.islice(itertools.cycle(others), len(rows))))) is not None
    assert asked.fault(200, answer(dataclasses.replace(asked, name="another"), rows)) is not None


def answer(asked: Asked, rows: list[npt.NDArray[np.float64]]) -> bytes:
    """The candidates with these scores, in the right order."""
    items = [
        {"id": item, "score": total, "scores": dict(zip(asked.tasks, row.tolist(), strict=True))}
        for (item, total), row in zip(asked.total.items(), rows, strict=True)
    ]
    items.sort(key=lambda item: -item["score"])
    return json.dumps({"request_id": asked.name, "items": items}).encode()
