"""Responses with a Redis server: the same scores whether features are sent, stored, or in the bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from pipelines.cli.main import main
from service.app import create_app
from service.settings import Settings
from tests.support.arrow_streams import send, stream
from tests.support.hand_ranker import ITEMS, USERS
from tests.support.rank_request import rank
from tests.support.redis_server import RedisServer


@contextmanager
def serve(repository: Path, **settings: Any) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(repository=repository, store_timeout_ms=10_000, **settings))) as client:
        yield client


@pytest.fixture(scope="module")
def bundle_client(repository_with_tables: Path) -> Iterator[TestClient]:
    """Client of a service with features in its bundle."""
    with serve(repository_with_tables) as client:
        yield client


@pytest.fixture(scope="module")
def store_client(repository_without_tables: Path, server: RedisServer) -> Iterator[TestClient]:
    """Client of a service of the same model with features only in the store."""
    with serve(repository_without_tables, store=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def combined_client(repository_with_tables: Path, server: RedisServer) -> Iterator[TestClient]:
    """Client of a service with features in its bundle and in the store."""
    with serve(repository_with_tables, store=server.url) as client:
        yield client


@pytest.fixture
def loaded_redis(empty_redis: RedisServer, repository_with_tables: Path) -> RedisServer:
    """The store with the rows of the bundle's tables."""
    for owner in ("items", "users"):
        rows = repository_with_tables.parent / f"{owner}.parquet"
        bundle = repository_with_tables / "feed" / "1"
        with redirect_stdout(StringIO()):
            assert (
                main([owner, "load", str(rows), "--bundle", str(bundle), "--to", empty_redis.url, "--model", "feed"])
                == 0
            )
    return empty_redis


def draw_request(random: np.random.Generator) -> dict[str, Any]:
    """Draw a request with some features, some nulls, and a few unknown ids."""
    ids = random.choice(ITEMS + 3, int(random.integers(1, 20)), replace=False).tolist()
    body: dict[str, Any] = {"request_id": "r", "context": {"tab": "home", "hour": 9}, "items": {"id": ids}}
    body["user"] = {"id": f"u{random.integers(USERS + 2)}"}
    if random.random() < 0.5:
        body["user"]["features"] = {"age": None if random.random() < 0.5 else 31, "liked": [1, 2]}
    if random.random() < 0.5:
        prices = [None if random.random() < 0.5 else 2.5 for _ in ids]
        body["items"]["features"] = {"price": prices}
    return body


def test_response_with_stored_features_equals_response_with_bundled_features(
    loaded_redis: RedisServer, bundle_client: TestClient, store_client: TestClient
) -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        body = draw_request(random)
        assert rank(store_client, body) == rank(bundle_client, body)


def test_response_without_stored_features_differs(
    empty_redis: RedisServer, bundle_client: TestClient, store_client: TestClient
) -> None:
    body: dict[str, Any] = {"request_id": "r", "user": {"id": "u1"}, "items": {"id": list(range(9))}}
    assert rank(store_client, body)["items"] != rank(bundle_client, body)["items"]


ITEM_FEATURES: dict[str, Any] = {"price": 77.5, "genres": ["news", "sport"], "words": []}
USER_FEATURES: dict[str, Any] = {"age": 19, "country": "C3", "recent": [4, 5, 6], "liked": []}


def test_stored_value_counts_like_a_sent_value(loaded_redis: RedisServer, combined_client: TestClient) -> None:
    header = {"request_id": "r", "user": {"id": "u1"}, "context": {"tab": "home"}}
    body: dict[str, Any] = header | {"items": [{"id": 1}, {"id": 2}]}
    sent = body | {
        "user": {"id": "u1", "features": USER_FEATURES},
        "items": [{"id": 1, "features": ITEM_FEATURES}, {"id": 2}],
    }
    before, expected = rank(combined_client, body), rank(combined_client, sent)
    assert before != expected
    loaded_redis.client.set("ranker:feed:item:1", json.dumps(ITEM_FEATURES))
    loaded_redis.client.set("ranker:feed:user:u1", json.dumps(USER_FEATURES))
    assert rank(combined_client, body) == expected


def test_sent_values_override_the_store_and_the_store_overrides_the_bundle(
    empty_redis: RedisServer, combined_client: TestClient, bundle_client: TestClient
) -> None:
    empty_redis.client.set("ranker:feed:item:1", json.dumps({"price": 77.5, "genres": None}))
    items: dict[str, Any] = {"id": [1, 2], "features": {"words": [["w1"], None]}}
    body: dict[str, Any] = {"request_id": "r", "user": {"id": "u1"}, "items": items}
    with_stored_price = {"id": [1, 2], "features": {"words": [["w1"], None], "price": [77.5, None]}}
    assert (
        rank(combined_client, body)
        == rank(bundle_client, body | {"items": with_stored_price})
        != rank(bundle_client, body)
    )
    overridden = {"id": [1, 2], "features": {"words": [["w1"], None], "price": [0.5, None]}}
    assert rank(combined_client, body | {"items": overridden}) == rank(bundle_client, body | {"items": overridden})
    assert not rank(combined_client, body)["degraded"]


def test_unreachable_store_degrades_to_the_features_of_the_bundle(
    repository_with_tables: Path, bundle_client: TestClient
) -> None:
    body: dict[str, Any] = {"request_id": "r", "user": {"id": "u1"}, "items": {"id": [1, 2, 3]}}
    with serve(repository_with_tables, store="redis://127.0.0.1:1") as client:
        for _ in range(10):
            assert rank(client, body) == rank(bundle_client, body) | {"degraded": True}
        assert client.get("/v2/health/ready").status_code == 200


def test_integer_and_text_ids_read_the_same_keys(loaded_redis: RedisServer, store_client: TestClient) -> None:
    integers = rank(store_client, {"items": [{"id": 1}, {"id": 2}]})["items"]
    texts = rank(store_client, {"items": [{"id": "1"}, {"id": "2"}]})["items"]
    assert [item["score"] for item in integers] == [item["score"] for item in texts]
    assert [str(item["id"]) for item in integers] == [item["id"] for item in texts]


def test_stored_features_are_not_listed_as_missing(loaded_redis: RedisServer, store_client: TestClient) -> None:
    loaded_redis.client.set("ranker:feed:item:1", json.dumps(ITEM_FEATURES))
    (item,) = rank(store_client, {"context": {"tab": "home", "hour": 3}, "items": [{"id": 1}]})["items"]
    assert item["missing"] == ["user.id", "country", "liked", "recent", "age"]


def test_arrow_request_with_nulls_reads_the_store(loaded_redis: RedisServer, combined_client: TestClient) -> None:
    loaded_redis.client.set("ranker:feed:item:2", json.dumps(ITEM_FEATURES))
    header = {"user": {"id": "u1"}, "request_id": "r"}
    table = pa.table({"item_id": [1, 2, 3], "price": [9.5, None, 1.0]})
    expected = rank(combined_client, header | {"items": {"id": [1, 2, 3], "features": {"price": [9.5, None, 1.0]}}})
    assert send(combined_client, stream(table, header)) == expected


def test_explanation_is_the_same_with_stored_features(
    loaded_redis: RedisServer, store_client: TestClient, bundle_client: TestClient
) -> None:
    body: dict[str, Any] = {"request_id": "r", "user": {"id": "u1"}, "items": {"id": [1, 2, 3]}, "explain": True}
    assert rank(store_client, body) == rank(bundle_client, body)


def test_request_larger_than_a_batch_has_the_same_scores(
    loaded_redis: RedisServer, bundle_client: TestClient, repository_without_tables: Path
) -> None:
    body: dict[str, Any] = {"request_id": "r", "user": {"id": "u1"}, "items": {"id": list(range(ITEMS))}}
    with serve(repository_without_tables, store=loaded_redis.url, max_batch_rows=7) as client:
        response, expected = rank(client, body), rank(bundle_client, body)
    assert [item["id"] for item in response["items"]] == [item["id"] for item in expected["items"]]
    assert [item["score"] for item in response["items"]] == pytest.approx([item["score"] for item in expected["items"]])


def test_store_prefix_separates_values(
    loaded_redis: RedisServer, repository_without_tables: Path, store_client: TestClient
) -> None:
    body: dict[str, Any] = {"request_id": "r", "items": {"id": list(range(9))}}
    with serve(repository_without_tables, store=loaded_redis.url, store_prefix="other") as client:
        assert rank(client, body) != rank(store_client, body)


def test_invalid_request_with_a_store_is_rejected_with_the_field(
    loaded_redis: RedisServer, store_client: TestClient
) -> None:
    response = store_client.post("/v1/rank", json={"items": [{"id": 1, "features": {"price": "high"}}]})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "items[0].features.price"


def test_server_timing_header_contains_the_store_stage(
    loaded_redis: RedisServer, repository_without_tables: Path
) -> None:
    with serve(repository_without_tables, store=loaded_redis.url) as client:
        times = client.post("/v1/rank", json={"items": [{"id": 1}]}).headers["Server-Timing"]
    stages = [part.split(";")[0] for part in times.split(", ")]
    assert stages == ["parse", "store", "queue", "look-up", "forward", "write"]
