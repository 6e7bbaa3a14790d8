"""Invalid requests: status codes, and errors that name the field."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from service.http.decode import MIN_COLUMNS_BYTES

ITEMS = [{"id": "v1"}]

INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, "items"),
    ({"items": "v1"}, "items"),
    ({"items": ITEMS, "itemz": 1}, "itemz"),
    ({"items": [{"features": {}}]}, "items[0].id"),
    ({"items": [{"id": 1.5}]}, "items[0].id"),
    ({"items": [{"id": None}]}, "items[0].id"),
    ({"items": [{"id": True}]}, "items[0].id"),
    ({"items": [*ITEMS, {"id": "v2"}, *ITEMS]}, "items[2].id"),
    ({"items": {"id": ["v1", "v1"]}}, "items[1].id"),
    ({"items": [{"id": "v1", "features": {"prise": 1}}]}, "items.features.prise"),
    ({"items": [{"id": "v1"}, {"id": "v2", "features": {"price": "x"}}]}, "items[1].features.price"),
    ({"items": [{"id": "v1", "features": {"price": True}}]}, "items[0].features.price"),
    ({"items": [{"id": "v1", "features": {"price": [1]}}]}, "items[0].features.price"),
    ({"items": [{"id": "v1"}, {"id": "v2", "features": {"price": -1}}]}, "items[1].features.price"),
    ({"items": [{"id": "v1", "features": {"topics": "topic0_1"}}]}, "items[0].features.topics"),
    ({"items": [{"id": "v1", "features": {"topics": [{"a": 1}]}}]}, "items[0].features.topics"),
    ({"items": [{"id": "v1", "features": {"category": 1.5}}]}, "items[0].features.category"),
    ({"items": [{"id": "v1", "features": {"item_id": "v2"}}]}, "items.features.item_id"),
    ({"items": {"id": ["v1", "v2"], "features": {"price": [1]}}}, "items.features.price"),
    ({"items": {"id": ["v1", "v2"], "features": {"category": [1, "K1"]}}}, "items.features.category"),
    ({"items": ITEMS, "user": {"id": [1]}}, "user.id"),
    ({"items": ITEMS, "user": {"features": {"age": "old"}}}, "user.features.age"),
    ({"items": ITEMS, "user": {"features": {"price": 1}}}, "user.features.price"),
    ({"items": ITEMS, "context": {"hour": "noon"}}, "context.hour"),
    ({"items": ITEMS, "context": {"hour": 2**70}}, "context.hour"),
    ({"items": ITEMS, "context": {"age": 1}}, "context.age"),
    ({"items": ITEMS, "tasks": ["klick"]}, "tasks"),
    ({"items": ITEMS, "tasks": ["click", "click"]}, "tasks"),
    ({"items": ITEMS, "tasks": []}, "tasks"),
    ({"items": ITEMS, "objective": {"klick": 1}}, "objective.klick"),
    ({"items": ITEMS, "tasks": ["click"], "objective": {"like": 1}}, "objective.like"),
    ({"items": ITEMS, "objective": {}}, "objective"),
    ({"items": ITEMS, "objective": {"click": "a lot"}}, "objective.click"),
    ({"items": ITEMS, "objective": {"click": 0}}, "objective"),
    ({"items": ITEMS, "objective": {"click": -0.0, "like": 0}}, "objective"),
    ({"items": ITEMS, "objective": {"click": 1e308}}, "objective.click"),
    ({"items": ITEMS, "objective": {"click": -1.1e6}}, "objective.click"),
    ({"items": ITEMS, "objective": {"click": True}}, "objective.click"),
    ({"items": ITEMS, "objective": {"click": None}}, "objective.click"),
    ({"items": ITEMS, "top_n": 0}, "top_n"),
    ({"items": ITEMS, "top_n": -1}, "top_n"),
    ({"items": ITEMS, "top_n": 1.0}, "top_n"),
    ({"items": ITEMS, "top_n": True}, "top_n"),
    ({"items": ITEMS, "deadline_ms": -1}, "deadline_ms"),
    ({"items": ITEMS, "deadline_ms": 0}, "deadline_ms"),
    ({"items": ITEMS, "deadline_ms": 1e-300}, "deadline_ms"),
    ({"items": ITEMS, "deadline_ms": 1e300}, "deadline_ms"),
    ({"items": ITEMS, "user": {"id": 2**63}}, "user.id"),
    ({"items": ITEMS, "layout": "diagonal"}, "layout"),
]


@pytest.mark.parametrize(("body", "field"), INVALID, ids=[f"{field}-{i}" for i, (_, field) in enumerate(INVALID)])
def test_rank_invalid_field_is_422_and_named(client: TestClient, body: dict[str, Any], field: str) -> None:
    response = client.post("/v1/rank", json=body)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == 422
    assert [error["field"] for error in problem["errors"]] == [field]
    assert field in problem["detail"]
    assert problem["errors"][0]["reason"]


COLUMNS_WITH_PRICE = '{"id": [1, 2], "features": {"price": [null, %s]}}'


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
@pytest.mark.parametrize(
    "items",
    ['[{"id": "v1"}, {"id": "v2", "features": {"price": %s}}]', '{"id": [1, 2], "features": {"price": [null, %s]}}'],
)
def test_rank_number_that_is_not_finite_names_the_candidate(client: TestClient, items: str, number: str) -> None:
    content = f'{{"items": {items % number}}}'
    response = client.post("/v1/rank", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "items[1].features.price"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
@pytest.mark.parametrize("field", ["objective.click", "deadline_ms", "top_n"])
def test_rank_option_that_is_not_finite_is_rejected(client: TestClient, field: str, number: str) -> None:
    option = f'"objective": {{"click": {number}}}' if field == "objective.click" else f'"{field}": {number}'
    content = f'{{"items": [{{"id": 1}}], {option}}}'
    response = client.post("/v1/rank", content=content, headers={"Content-Type": "application/json"})
    if field == "top_n" and number.isdigit():
        assert response.status_code == 200
        return
    assert response.status_code == 422, response.text
    assert [error["field"] for error in response.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"objective": {"click": 0, "like": 0}}, "every weight is 0, so that no task determines the order"),
        ({"objective": {"click": 1e308}}, "must be at most 1000000"),
        ({"objective": {"click": -1e308}}, "must be at least -1000000"),
        ({"deadline_ms": 1e-300}, "must be at least 0.001"),
        ({"deadline_ms": 1e300}, "must be at most 86400000"),
        ({"user": {"id": 1.5}}, "must be a 64-bit integer or a string"),
        ({"user": {"id": -(2**63) - 1}}, "must be a 64-bit integer or a string"),
        ({"tasks": "click"}, "must be a list"),
        ({"tasks": [1]}, "must be a string"),
        ({"explain": 1}, "must be true or false"),
        ({"layout": "x"}, "must be 'rows' or 'columns'"),
        ({"request_id": "x" * 257}, "must have at most 256 characters"),
    ],
)
def test_rank_invalid_option_names_its_bounds(client: TestClient, option: dict[str, Any], reason: str) -> None:
    response = client.post("/v1/rank", json={"items": ITEMS} | option)
    assert response.status_code == 422
    assert reason in response.json()["errors"][0]["reason"]


@pytest.mark.parametrize("weight", [1e6, -1e6, 1e-300])
def test_rank_extreme_objective_has_finite_scores(client: TestClient, weight: float) -> None:
    tasks = ["click", "rating", "watch_time"]
    features = {"price": 1e308, "quality": -1e308}
    body = {
        "user": {"id": "u1", "features": {"age": 1e308}},
        "items": [*ITEMS, {"id": "v2", "features": features}],
        "tasks": tasks,
        "objective": dict.fromkeys(tasks, weight),
    }
    response = client.post("/v1/rank", json=body)
    assert response.status_code == 200, response.text
    numbers = [n for item in response.json()["items"] for n in (item["score"], *item["scores"].values())]
    assert all(isinstance(number, float) for number in numbers), "JSON has null for a number that is not finite"


def test_rank_too_many_candidates_are_413(client: TestClient) -> None:
    response = client.post("/v1/rank", json={"items": [{"id": i} for i in range(201)]})
    assert response.status_code == 413
    assert "at most 200" in response.json()["detail"]


@pytest.mark.parametrize("chunked", [False, True])
def test_rank_too_large_body_is_413(client: TestClient, chunked: bool) -> None:
    content = b" " * 100_001
    headers = {"Content-Type": "application/json"}
    body = iter([content[:60_000], content[60_000:]]) if chunked else content
    response = client.post("/v1/rank", content=body, headers=headers)
    assert response.status_code == 413
    assert "100000 bytes" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/rank", "/v2/repository/index"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate, gzip", "br", "IDENTITY2", "x" * 300])
def test_body_with_a_content_encoding_is_415_with_the_fix(client: TestClient, path: str, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    response = client.post(path, content=gzip.compress(b'{"items": [{"id": "v1"}]}'), headers=headers)
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "identity"
    assert f"Content-Encoding is '{encoding[:70]}" in response.json()["detail"]
    assert "send the body without compression" in response.json()["detail"]


@pytest.mark.parametrize("encoding", ["identity", "Identity", " identity "])
def test_body_with_the_identity_encoding_is_accepted(client: TestClient, encoding: str) -> None:
    response = client.post("/v1/rank", json={"items": ITEMS}, headers={"Content-Encoding": encoding})
    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/nope/rank", "/v1/models/feed/versions/2/rank"])
def test_rank_unknown_model_or_version_is_404_and_lists_the_served_ones(client: TestClient, path: str) -> None:
    response = client.post(path, json={"items": ITEMS})
    assert response.status_code == 404
    assert "served: " in response.json()["detail"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FEATURE_NAMES = st.sampled_from(["price", "category", "topics", "quality", "author", "other"])
FEATURES = st.dictionaries(FEATURE_NAMES, JSON, max_size=3)
ROWS = st.lists(st.fixed_dictionaries({"id": JSON | st.text(), "features": FEATURES}), max_size=4)
CELLS = st.integers(-3, 3) | st.floats(-9, 9)


def columns(rows: int) -> st.SearchStrategy[dict[str, Any]]:
    ids = st.lists(st.integers(0, 9), min_size=rows, max_size=rows, unique=True)
    texts = st.lists(st.sampled_from(["v1", "v2", "v3", "[", "\u00fc"]), min_size=rows, max_size=rows, unique=True)
    cells = (st.lists(values, min_size=rows, max_size=rows) for values in (CELLS, CELLS | st.none(), JSON))
    return st.fixed_dictionaries({"id": ids | texts, "features": st.dictionaries(FEATURE_NAMES, st.one_of(*cells))})


COLUMNS = st.integers(0, 3).flatmap(columns)
REQUESTS = st.fixed_dictionaries(
    {"items": ROWS | COLUMNS | JSON},
    optional={
        "user": st.fixed_dictionaries({"id": JSON}),
        "context": st.dictionaries(st.sampled_from(["hour", "surface"]), JSON),
        "tasks": st.lists(st.sampled_from(["click", "like", "x"]), max_size=2),
        "objective": st.dictionaries(st.sampled_from(["click", "x"]), st.floats(), max_size=2),
        "deadline_ms": st.none() | st.floats(1e3, 1e300) | st.integers(10**4) | st.booleans(),
        "top_n": JSON,
        "explain": JSON,
    },
)


@given(body=REQUESTS)
def test_rank_generated_body_never_causes_a_server_error(client: TestClient, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "X-Request-ID": "r-1"}
    response = client.post("/v1/rank", content=json.dumps(body), headers=headers)
    assert response.status_code in (200, 400, 413, 422), response.text
    large = client.post("/v1/rank", content=json.dumps(body) + " " * MIN_COLUMNS_BYTES, headers=headers)
    assert (large.status_code, large.json()) == (response.status_code, response.json()), (
        "large bodies have another reader"
    )
