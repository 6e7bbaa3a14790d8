"""Compare the scores that a server returns with those of the library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.serving.peers.forms import PLAIN, Form
from pipelines.bench.connection import RequestBody
from pipelines.bench.load import HOST, OK
from ranking.artifacts import bundle
from ranking.errors import RankerError

MAX_DIFFERENCE = 1e-5
"""Maximum difference between two computations of a score."""

Expected = Mapping[Any, Mapping[str, float]]
"""Item id → task → score."""


class ScoreCheck:
    """Compares responses with the reference graph of a bundle.

    Args:
        folder: the bundle.
    """

    def __init__(self, folder: Path) -> None:
        self._ranker = bundle.load(folder)
        self._expected: dict[bytes, Expected] = {}

    def check(self, name: str, port: int, bodies: Sequence[RequestBody], form: Form = PLAIN) -> None:
        """Send each request once.

        Args:
            name: name of the server in errors.
            port: port of the server.
            bodies: requests with ids only.
            form: form of requests and responses of the server.

        Raises:
            RankerError: a response differs from the scores of the library, or its items are not sorted by the first
                task.
        """
        for body in bodies:
            if body.data not in self._expected:
                self._expected[body.data] = self._score(json.loads(body.data))
            compare(name, _post(name, port, body, form), self._expected[body.data])

    def _score(self, request: dict[str, Any]) -> Expected:
        columns, ids = self._ranker.schema.columns, request["items"]["id"]
        shared = {columns.user: request["user"]["id"], **request["context"]}
        table = pa.table({columns.item: ids} | {name: [value] * len(ids) for name, value in shared.items()})
        return dict(zip(ids, self._ranker.score(table).drop(["score"]).to_pylist(), strict=True))


def compare(name: str, items: Sequence[Mapping[str, Any]], expected: Expected) -> None:
    """Compare the items of a response with the expected scores.

    Raises:
        RankerError: they differ, or the items are not sorted.
    """
    if sorted(item["id"] for item in items) != sorted(expected):
        raise RankerError(f"{name}: the response does not contain exactly the candidates of the request")
    for item in items:
        for task, score in expected[item["id"]].items():
            if not abs(item["scores"][task] - score) <= MAX_DIFFERENCE:
                text = f"item {item['id']} has {item['scores'][task]:g} for {task}, the library computes {score:g}"
                raise RankerError(f"{name}: {text}")
    first = next(iter(next(iter(expected.values()))))
    scores = [item["scores"][first] for item in items]
    if scores != sorted(scores, reverse=True):
        raise RankerError(f"{name}: the items are not sorted by {first}")


def _post(name: str, port: int, body: RequestBody, form: Form) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("POST", form.path, form.wrap(body.data), {"Content-Type": body.content_type})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise RankerError(f"{name}: no response to a request ({error})") from error
    finally:
        connection.close()
    if response.status != OK:
        raise RankerError(f"{name}: status {response.status} to a request: {text[:200].decode(errors='replace')}")
    items: list[dict[str, Any]] = form.unwrap(text)["items"]
    return items
