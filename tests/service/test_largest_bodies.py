"""Memory of a service with default limits to which many clients send the largest bodies of every endpoint."""

from __future__ import annotations

import http.client
import itertools
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.http.media_types import ARROW, JSON
from service.settings import Settings
from tests.support.arrow_streams import stream
from tests.support.background_load import BackgroundLoad
from tests.support.memory import memory_bytes
from tests.support.ports import HOST
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS

CONNECTIONS = 24
MEMORY = 2 * 1024**3
"""Memory of a container, see docs/operations.md."""
LIMITS = Settings(repository=Path())
BYTES = LIMITS.max_body_bytes - 65_536
"""Size of the lists of a body, just below the limit."""
ITEMS = [f"v{i}" for i in range(LIMITS.max_candidates)]
REQUEST: dict[str, Any] = {"user": {"id": "u3"}, "context": {"surface": "home", "hour": 9}}

Body = tuple[str, bytes, str]
"""Path, content, and its type."""


def rank(**members: Any) -> Body:
    return "/v1/rank", compact(REQUEST | members), JSON


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def texts(length: int) -> list[str]:
    """Return texts of a length whose JSON takes a body."""
    return [f"{number:x}".rjust(length, "x") for number in range(BYTES // (length + 3))]


def many_candidates() -> Body:
    """The largest number of candidates, each with a list of texts."""
    topics = ["x" * 100] * (BYTES // len(ITEMS) // 103 - 1)
    return rank(items=[{"id": item, "features": {"topics": topics}} for item in ITEMS], explain=True)


def long_texts_of_a_user() -> Body:
    return rank(user={"id": "u3", "features": {"interests": texts(1_000)}}, items={"id": ["v1"]})


def short_texts() -> Body:
    return rank(items=[{"id": "v1", "features": {"topics": texts(6)}}])


def numbers() -> Body:
    """The largest number of elements."""
    return rank(items=[{"id": "v1", "features": {"topics": [1] * (BYTES // 2)}}])


def arrow() -> Body:
    topics = pa.array([["x" * 750, "y" * 750]] * len(ITEMS))
    return "/v1/rank", stream({"item_id": ITEMS, "topics": topics}, REQUEST), ARROW


def compressed_arrow() -> Body:
    """Columns that are as large as a body once they are decoded."""
    topics = pa.array([["x" * 750, "y" * 750]] * len(ITEMS))
    return "/v1/rank", stream({"item_id": ITEMS, "topics": topics}, REQUEST, compression="zstd"), ARROW


def infer() -> Body:
    count = BYTES // 2
    inputs = [
        {"name": "item_id", "datatype": "BYTES", "shape": [1], "data": ["v1"]},
        {"name": "topics", "datatype": "INT64", "shape": [1, count], "data": [1] * count},
    ]
    return "/v2/models/feed/infer", compact({"inputs": inputs}), JSON


def feedback() -> Body:
    event = {"item": "v" * 1_000, "labels": {"click": 1}}
    return "/v1/feedback", compact({"request_id": "r", "events": [event] * 5_000}), JSON


def invalid_objects() -> Body:
    return rank(items=[{"id": "v1", "features": {"topics": [{"": 0}] * (BYTES // 7)}}])


def invalid_lists() -> Body:
    return rank(items=[{"id": "v1", "features": {"topics": [[[0]]] * (BYTES // 8)}}])


BODIES = [
    invalid_objects,
    invalid_lists,
    many_candidates,
    long_texts_of_a_user,
    short_texts,
    numbers,
    arrow,
    compressed_arrow,
    infer,
    feedback,
]


SOME_BODIES = [invalid_objects, many_candidates, numbers, compressed_arrow, feedback]
"""A body for each reader."""


@pytest.mark.parametrize(
    ("makers", "bodies_per_client"),
    [
        pytest.param(SOME_BODIES, 1, marks=pytest.mark.system, id="some"),
        pytest.param(BODIES, 4, marks=[pytest.mark.system, pytest.mark.nightly], id="all"),
    ],
)
def test_largest_bodies_of_many_clients_fit_into_a_small_container(
    repository: Path,
    tmp_path: Path,
    request_body: dict[str, Any],
    makers: list[Callable[[], Body]],
    bodies_per_client: int,
) -> None:
    """A few clients must not have the system end the process, which answers all others."""
    bodies = [make() for make in makers]
    settings = {"served_log": tmp_path / "served", "feedback_dir": tmp_path / "feedback"}
    with running_service(repository, **settings) as service:

        def send(body: Body) -> int:
            path, content, content_type = body
            with closing(http.client.HTTPConnection(HOST, service.port, timeout=TIMEOUT_SECONDS)) as connection:
                connection.request("POST", path, content, {"Content-Type": content_type})
                return connection.getresponse().status

        for make, body in zip(makers, bodies, strict=True):
            expected = (422,) if make.__name__.startswith("invalid") else (200, 202)
            assert send(body) in expected, make.__name__
            assert len(body[1]) <= LIMITS.max_body_bytes
        others = BackgroundLoad(service.port, request_body, count=2)
        with others.running(), ThreadPoolExecutor(CONNECTIONS) as pool:
            statuses = Counter(
                pool.map(send, itertools.islice(itertools.cycle(bodies), CONNECTIONS * bodies_per_client))
            )
            others.wait_for(others.statuses[200] + 1)
        peak = memory_bytes(service.process.pid, "VmHWM")
        print(f"{dict(statuses)}, others {dict(others.statuses)}, peak {peak // 1024**2} MiB")
        assert set(statuses) <= {200, 202, 422, 429}
        assert set(others.statuses) <= {200, 429}
        assert peak < MEMORY
        assert "Traceback" not in service.output()
