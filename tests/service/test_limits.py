"""Limits of a request: rejections are fast, and name the limit and the field."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings

MAX_CPU_SECONDS = 5.0
"""Upper bound on the CPU time of a rejection; the slowest takes about 1 s, and would take minutes without limits."""


@pytest.fixture(scope="module")
def default_client(repository: Path) -> Iterator[TestClient]:
    """A client of a service with default limits."""
    with TestClient(create_app(Settings(repository=repository)), raise_server_exceptions=False) as client:
        yield client


def rejection(client: TestClient, body: bytes, status: int) -> dict[str, Any]:
    """Send a request that must be rejected with a status in bounded time; return the problem document."""
    assert client.portal is not None
    start = client.portal.call(time.thread_time)  # of the event loop, which reads the body
    response = client.post("/v1/rank", content=body, headers={"Content-Type": "application/json"})
    assert client.portal.call(time.thread_time) - start < MAX_CPU_SECONDS
    assert response.status_code == status, response.text[:500]
    assert len(response.content) < 100_000
    problem: dict[str, Any] = response.json()
    return problem


def test_rank_text_at_the_limit_is_accepted(default_client: TestClient) -> None:
    body = {"items": [{"id": "x" * 1_024}, {"id": "ü" * 1_024}, {"id": '"' * 1_024}]}
    assert default_client.post("/v1/rank", json=body).status_code == 200


MANY = 400_000
NAMES = ",".join(f'"{name}":1' for name in range(MANY))


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"[" * 100_000, 400, "body"),
        (b'{"items":' + b'{"a":' * 100_000, 400, "body"),
        (b'{"items":[{"id":1,"features":{"topics":' + b"[" * 1_000 + b"]" * 1_000 + b"}}]}", 422, None),
        (b'{"items":[{"id":1}],"context":{"hour":' + b"[" * 1_000 + b"]" * 1_000 + b"}}", 422, "context.hour"),
        (b'{"items":[' + b"1," * MANY + b"1]}", 413, None),
        (b'{"items":{"id":[' + b"null," * MANY + b"1]}}", 413, None),
        (b'{"items":[],"tasks":[' + b"1," * MANY + b"1]}", 422, "body"),
        (f'{{"items":[],{NAMES}}}'.encode(), 422, "body"),
        (f'{{"items":[],"objective":{{{NAMES}}}}}'.encode(), 422, None),
        (f'{{"items":[],"user":{{"features":{{{NAMES}}}}}}}'.encode(), 422, None),
        (
            b'{"items":[' + b",".join(b'{"id":%d,"features":{"f%d":1}}' % (i, i) for i in range(5_000)) + b"]}",
            422,
            None,
        ),
        (b'{"items":[],"tasks":["' + b'\\"' * 1_000_000 + b'"]}', 422, "tasks[0]"),
    ],
    ids=range(12),
)
def test_rank_expensive_body_is_rejected_in_bounded_time(
    default_client: TestClient, body: bytes, status: int, field: str | None
) -> None:
    problem = rejection(default_client, body, status)
    assert field is None or problem["errors"][0]["field"] == field


def test_rank_with_many_invalid_fields_names_the_first_100(default_client: TestClient) -> None:
    problem = rejection(default_client, json.dumps({"items": [{"id": None}] * 500}).encode(), 422)
    assert [error["field"] for error in problem["errors"]] == [f"items[{i}].id" for i in range(100)]


def test_rank_deadline_is_the_earlier_one_of_request_and_maximum(repository: Path, default_client: TestClient) -> None:
    with TestClient(create_app(Settings(repository=repository, max_deadline_ms=1e-6))) as limited:
        for client, deadline, passed in (
            (default_client, {"deadline_ms": 0.001}, "0.001"),
            (limited, {}, "1e-06"),
            (limited, {"deadline_ms": 60_000}, "1e-06"),
        ):
            response = client.post("/v1/rank", json={"items": [{"id": "v1"}]} | deadline)
            assert response.status_code == 504
            detail = rf"deadline_ms = {re.escape(passed)} passed before scoring started \(\d+\.\d ms\)"
            assert re.fullmatch(detail, response.json()["detail"])
