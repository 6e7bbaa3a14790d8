"""How much a request may ask for: what is over a limit is refused soon, whatever it is, and says which limit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.http.media_types import ARROW
from service.settings import Settings
from tests.support.arrow_streams import stream

LONG = "x" * 1_025
SOON = 5.0
"""Seconds of CPU; the slowest takes about one, and minutes where nothing bounds it."""


@pytest.fixture(scope="module")
def open_client(repository: Path) -> Iterator[TestClient]:
    """A client of the service with its own limits."""
    with TestClient(create_app(Settings(repository=repository)), raise_server_exceptions=False) as client:
        yield client


def refused(client: TestClient, body: bytes, status: int) -> dict[str, Any]:
    """The problem, if the body is refused with this status, and soon."""
    start = time.process_time()
    response = client.post("/v1/rank", content=body, headers={"Content-Type": "application/json"})
    assert time.process_time() - start < SOON
    assert response.status_code == status, response.text[:500]
    assert len(response.content) < 100_000
    problem: dict[str, Any] = response.json()
    return problem


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"items": [{"id": "v1"}, {"id": LONG}]}, "items[1].id"),
        ({"items": {"id": ["v1", LONG]}}, "items.id[1]"),
        ({"items": [{"id": "v1", "features": {"category": LONG}}]}, "items[0].features.category"),
        ({"items": [{"id": "v1", "features": {"topics": ["a", LONG]}}]}, "items[0].features.topics[1]"),
        ({"items": [{"id": "v1"}], "user": {"id": LONG}}, "user.id"),
        ({"items": [{"id": "v1"}], "context": {"surface": LONG}}, "context.surface"),
        ({"items": [{"id": "v1"}], "tasks": [LONG]}, "tasks[0]"),
        ({"items": [{"id": "v1"}], "context": {LONG: 1}}, f"context.{LONG[:40]}"),
    ],
)
def test_long_text_is_422_and_its_field_named(open_client: TestClient, body: dict[str, Any], field: str) -> None:
    problem = refused(open_client, json.dumps(body).encode(), 422)
    assert [error["field"] for error in problem["errors"]] == [field]
    assert "more than 1024 characters" in problem["detail"]


def test_text_of_the_most_characters_is_none_too_long(open_client: TestClient) -> None:
    body = {"items": [{"id": LONG[1:]}, {"id": "ü" * 1_024}, {"id": '"' * 1_024}]}
    assert open_client.post("/v1/rank", json=body).status_code == 200


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"item_id": ["v1", LONG]}, "items.id"),
        ({"item_id": ["v1"], "category": [LONG]}, "items.features.category"),
        ({"item_id": ["v1"], "topics": [["a", LONG]]}, "items.features.topics"),
    ],
)
def test_so_it_is_in_a_stream(open_client: TestClient, columns: dict[str, Any], field: str) -> None:
    headers = {"Content-Type": ARROW}
    response = open_client.post("/v1/rank", content=stream(columns, {}), headers=headers)
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


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
def test_a_body_made_to_take_long_is_refused_soon(
    open_client: TestClient, body: bytes, status: int, field: str | None
) -> None:
    problem = refused(open_client, body, status)
    assert field is None or problem["errors"][0]["field"] == field


def test_of_many_faults_the_first_are_named(open_client: TestClient) -> None:
    problem = refused(open_client, json.dumps({"items": [{"id": None}] * 500}).encode(), 422)
    assert [error["field"] for error in problem["errors"]] == [f"items[{i}].id" for i in range(100)]


def test_a_later_deadline_than_allowed_and_none_are_lowered(repository: Path) -> None:
    app = create_app(Settings(repository=repository, max_deadline_ms=1e-6))
    with TestClient(app) as client:
        for given in ({"deadline_ms": 60_000}, {}):
            response = client.post("/v1/rank", json={"items": [{"id": "v1"}]} | given)
            assert response.status_code == 504
            assert "deadline_ms = 1e-06" in response.json()["detail"]


def test_the_default_deadline_is_for_who_names_none(repository: Path) -> None:
    with TestClient(create_app(Settings(repository=repository, default_deadline_ms=1e-6))) as client:
        body = {"items": [{"id": "v1"}]}
        assert client.post("/v1/rank", json=body).status_code == 504
        assert client.post("/v1/rank", json=body | {"deadline_ms": 60_000}).status_code == 200
