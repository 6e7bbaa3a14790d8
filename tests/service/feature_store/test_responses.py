"""What a service with a real Redis answers: the same numbers, whether features are sent, stored or in the bundle."""

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
from service.http.media_types import ARROW
from service.settings import Settings
from tests.support.hand_ranker import ITEMS, USERS
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.parts


@contextmanager
def serving(repository: Path, **settings: Any) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(repository=repository, store_timeout_ms=10_000, **settings))) as client:
        yield client


@pytest.fixture(scope="module")
def known(with_tables: Path) -> Iterator[TestClient]:
    """A service that knows users and items by its bundle."""
    with serving(with_tables) as client:
        yield client


@pytest.fixture(scope="module")
def stored(without_tables: Path, server: RedisServer) -> Iterator[TestClient]:
    """A service of the same model that knows nothing but by the store."""
    with serving(without_tables, store=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def both(with_tables: Path, server: RedisServer) -> Iterator[TestClient]:
    """A service that knows them by its bundle and by the store."""
    with serving(with_tables, store=server.url) as client:
        yield client


@pytest.fixture
def loaded(empty: RedisServer, with_tables: Path) -> RedisServer:
    """The store with the bundle's tables in it."""
    for owner in ("items", "users"):
        rows = with_tables.parent / f"{owner}.parquet"
        bundle = with_tables / "feed" / "1"
        with redirect_stdout(StringIO()):
            assert main([owner, "load", str(rows), "--bundle", str(bundle), "--to", empty.url, "--model", "feed"]) == 0
    return empty


def rank(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/v1/rank", json=body | {"request_id": "r"})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def drawn(random: np.random.Generator) -> dict[str, Any]:
    """A request with some features and some nulls; a few ids are known nowhere."""
    ids = random.choice(ITEMS + 3, int(random.integers(1, 20)), replace=False).tolist()
    body: dict[str, Any] = {"context": {"tab": "home", "hour": 9}, "items": {"id": ids}}
    body["user"] = {"id": f"u{random.integers(USERS + 2)}"}
    if random.random() < 0.5:
        body["user"]["features"] = {"age": None if random.random() < 0.5 else 31, "liked": [1, 2]}
    if random.random() < 0.5:
        prices = [None if random.random() < 0.5 else 2.5 for _ in ids]
        body["items"]["features"] = {"price": prices}
    return body


def test_the_store_gives_what_the_bundle_would(loaded: RedisServer, known: TestClient, stored: TestClient) -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        body = drawn(random)
        assert rank(stored, body) == rank(known, body)


def test_without_it_they_would_differ(empty: RedisServer, known: TestClient, stored: TestClient) -> None:
    body: dict[str, Any] = {"user": {"id": "u1"}, "items": {"id": list(range(9))}}
    assert rank(stored, body)["items"] != rank(known, body)["items"]


FRESH: dict[str, Any] = {"price": 77.5, "genres": ["news", "sport"], "words": []}
YOUNG: dict[str, Any] = {"age": 19, "country": "C3", "recent": [4, 5, 6], "liked": []}


def test_a_value_that_is_set_counts_as_one_that_is_sent(loaded: RedisServer, both: TestClient) -> None:
    body: dict[str, Any] = {"user": {"id": "u1"}, "context": {"tab": "home"}, "items": [{"id": 1}, {"id": 2}]}
    sent = body | {"user": {"id": "u1", "features": YOUNG}, "items": [{"id": 1, "features": FRESH}, {"id": 2}]}
    before, expected = rank(both, body), rank(both, sent)
    assert before != expected
    loaded.client.set("ranker:feed:item:1", json.dumps(FRESH))
    loaded.client.set("ranker:feed:user:u1", json.dumps(YOUNG))
    assert rank(both, body) == expected


def test_what_is_sent_wins_and_what_the_store_lacks_is_the_bundles(
    empty: RedisServer, both: TestClient, known: TestClient
) -> None:
    empty.client.set("ranker:feed:item:1", json.dumps({"price": 77.5, "genres": None}))
    body: dict[str, Any] = {"user": {"id": "u1"}, "items": {"id": [1, 2], "features": {"words": [["w1"], None]}}}
    priced = {"id": [1, 2], "features": {"words": [["w1"], None], "price": [77.5, None]}}
    assert rank(both, body) == rank(known, body | {"items": priced}) != rank(known, body)
    cheap = {"id": [1, 2], "features": {"words": [["w1"], None], "price": [0.5, None]}}
    assert rank(both, body | {"items": cheap}) == rank(known, body | {"items": cheap})
    assert not rank(both, body)["degraded"]


def test_without_the_store_all_is_as_the_bundle_has_it_but_degraded(with_tables: Path, known: TestClient) -> None:
    body: dict[str, Any] = {"user": {"id": "u1"}, "items": {"id": [1, 2, 3]}}
    with serving(with_tables, store="redis://127.0.0.1:1") as client:
        for _ in range(10):
            assert rank(client, body) == rank(known, body) | {"degraded": True}
        assert client.get("/v2/health/ready").status_code == 200


def test_ids_are_the_same_as_integers_and_as_text(loaded: RedisServer, stored: TestClient) -> None:
    integers = rank(stored, {"items": [{"id": 1}, {"id": 2}]})["items"]
    texts = rank(stored, {"items": [{"id": "1"}, {"id": "2"}]})["items"]
    assert [item["score"] for item in integers] == [item["score"] for item in texts]
    assert [str(item["id"]) for item in integers] == [item["id"] for item in texts]


def test_what_is_stored_is_not_missing(loaded: RedisServer, stored: TestClient) -> None:
    loaded.client.set("ranker:feed:item:1", json.dumps(FRESH))
    (item,) = rank(stored, {"context": {"tab": "home", "hour": 3}, "items": [{"id": 1}]})["items"]
    assert item["missing"] == ["user_id", "country", "liked", "recent", "age_band", "age"]


def test_arrow_with_nulls(loaded: RedisServer, both: TestClient) -> None:
    loaded.client.set("ranker:feed:item:2", json.dumps(FRESH))
    rest = {"user": {"id": "u1"}, "request_id": "r"}
    table = pa.table({"item_id": [1, 2, 3], "price": [9.5, None, 1.0]}, metadata={"request": json.dumps(rest)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    response = both.post("/v1/rank", content=sink.getvalue().to_pybytes(), headers={"Content-Type": ARROW})
    assert response.json() == rank(both, rest | {"items": {"id": [1, 2, 3], "features": {"price": [9.5, None, 1.0]}}})


def test_explanations_are_made_with_it(loaded: RedisServer, stored: TestClient, known: TestClient) -> None:
    body: dict[str, Any] = {"user": {"id": "u1"}, "items": {"id": [1, 2, 3]}, "explain": True}
    assert rank(stored, body) == rank(known, body)


def test_a_request_longer_than_a_batch(loaded: RedisServer, known: TestClient, without_tables: Path) -> None:
    body: dict[str, Any] = {"user": {"id": "u1"}, "items": {"id": list(range(ITEMS))}}
    with serving(without_tables, store=loaded.url, max_batch_rows=7) as client:
        found, expected = rank(client, body), rank(known, body)
    assert [item["id"] for item in found["items"]] == [item["id"] for item in expected["items"]]
    assert [item["score"] for item in found["items"]] == pytest.approx([item["score"] for item in expected["items"]])


def test_prefix_and_model_keep_values_apart(loaded: RedisServer, without_tables: Path, stored: TestClient) -> None:
    body: dict[str, Any] = {"items": {"id": list(range(9))}}
    with serving(without_tables, store=loaded.url, store_prefix="other") as client:
        assert rank(client, body) != rank(stored, body)


def test_a_wrong_request_is_refused_as_ever(loaded: RedisServer, stored: TestClient) -> None:
    response = stored.post("/v1/rank", json={"items": [{"id": 1, "features": {"price": "high"}}]})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "items[0].features.price"


def test_answers_name_the_time_that_it_took(loaded: RedisServer, without_tables: Path) -> None:
    with serving(without_tables, store=loaded.url, server_timing=True) as client:
        times = client.post("/v1/rank", json={"items": [{"id": 1}]}).headers["Server-Timing"]
    assert [part.split(";")[0] for part in times.split(", ")] == [
        "parse",
        "store",
        "queue",
        "look-up",
        "forward",
        "write",
    ]
