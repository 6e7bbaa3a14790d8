"""Random rank requests with their expected responses, for tests that run many clients at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking import FrozenRanker

TOLERANCE = 1e-5


@dataclass(frozen=True)
class ExpectedRanking:
    """A request and its only correct response.

    Attributes:
        body: body of the request.
        request_id: id of the request.
        tasks: requested tasks.
        scores: scores of these tasks by the library, by candidate.
        totals: weighted sum of the scores, by candidate.
    """

    body: bytes
    request_id: str
    tasks: list[str]
    scores: dict[str, npt.NDArray[np.float64]]
    totals: dict[str, float]

    def fault(self, status: int, body: bytes) -> str | None:
        """Describe what is wrong with a response; None if it is correct."""
        if status != 200:
            return f"{self.request_id}: {status} {body[:200]!r}"
        document = json.loads(body)
        if document["request_id"] != self.request_id:
            return f"{self.request_id}: the response to {document['request_id']}"
        items = document["items"]
        if sorted(item["id"] for item in items) != sorted(self.scores):
            return f"{self.request_id}: other candidates than in the request"
        totals = [item["score"] for item in items]
        if totals != sorted(totals, reverse=True):
            return f"{self.request_id}: not sorted"
        if any(list(item["scores"]) != self.tasks for item in items):
            return f"{self.request_id}: other tasks than in the request"
        actual = np.array([[item["score"], *item["scores"].values()] for item in items])
        expected = np.array([[self.totals[item["id"]], *self.scores[item["id"]]] for item in items])
        differs = ~np.isclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE).all(1)
        if differs.any():
            first = int(np.argmax(differs))
            return f"{self.request_id}: {differs.sum()} candidates differ, as {items[first]} from {expected[first]}"
        return None


def draw_request(
    ranker: FrozenRanker, random: np.random.Generator, request_id: str, max_candidates: int
) -> ExpectedRanking:
    """Draw a request of 1 to ``max_candidates`` distinct candidates and one of three sets of tasks."""
    count = int(random.integers(1, max_candidates + 1))
    names = ranker.schema.task_names
    tasks = [names, names[:1], names[-2:]][random.integers(3)]  # few sets, so that requests share batches
    objective = {task: float(random.uniform(0.5, 2.0)) for task in tasks}
    ids = [f"v{i}" for i in random.choice(2 * max_candidates, count, replace=False)]
    items = {"price": random.lognormal(1.0, 1.0, count).tolist(), "quality": random.normal(size=count).tolist()}
    user = {"age": float(random.uniform(15, 80))}
    context = {"surface": str(random.choice(["home", "search"])), "hour": int(random.integers(24))}
    user_id = f"u{random.integers(400)}"
    body = {"request_id": request_id, "user": {"id": user_id, "features": user}, "context": context}
    body |= {"items": {"id": ids, "features": items}, "tasks": tasks, "objective": objective}
    columns: dict[str, list[Any]] = {"item_id": ids, "user_id": [user_id] * count} | items
    columns |= {column: [value] * count for column, value in (user | context).items()}
    scores = ranker.score(pa.table(columns), tasks)
    rows = np.stack([scores[task].to_numpy() for task in tasks], axis=1).astype(np.float64)
    totals = (rows @ np.array([objective[task] for task in tasks])).tolist()
    by_id, totals_by_id = dict(zip(ids, rows, strict=True)), dict(zip(ids, totals, strict=True))
    return ExpectedRanking(json.dumps(body).encode(), request_id, tasks, by_id, totals_by_id)
