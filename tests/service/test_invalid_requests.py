"""Invalid ranking requests: the status of each, and the error that names its field."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.http.decode import MIN_COLUMNS_BYTES
from service.http.media_types import JSON
from tests.support.json_schema import fits

ITEMS = [{"id": "v1"}]
LONG_TEXT = "x" * 1_025
ID, LISTS, TIME = (
    "must be a 64-bit integer or a string",
    "must be a list of 64-bit integers or strings",
    "with a time zone",
)
BAD_JSON, SURROGATE = "not valid JSON: .+ at character", "half of a surrogate pair"
TOO_LONG, UNKNOWN, ZERO = (
    "more than 1024 characters",
    "feature: this ranker reads",
    "so that no task determines the order",
)
Invalid = tuple[dict[str, Any] | bytes, int, str | None, str]

NOT_FINITE = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" + b"0" * 400]
WITH_NUMBER: list[tuple[bytes, str, str]] = [
    (b'{"items": [{"id": 1}, {"id": 2, "features": {"price": %b}}]}', "items[1].features.price", "is NaN or infinite"),
    (b'{"items": {"id": [1, 2], "features": {"price": [null, %b]}}}', "items[1].features.price", "is NaN or infinite"),
    (b'{"items": [], "objective": {"click": %b}}', "objective.click", "must be a "),
    (b'{"items": [], "deadline_ms": %b}', "deadline_ms", "must be a "),
]

INVALID: list[Invalid] = [
    (b"{}", 422, "items", r'is missing, such as \[{"id": "v1", "features": {"price": 3.2}}, {"id": "v2"}\]$'),
    ({"items": "v1"}, 422, "items", r'must be a list, such as \[{"id": "v1"'),
    ({"items": [1]}, 422, "items[0]", r'must be an object, such as {"id": "v1", "features": {"price": 3.2}}$'),
    ({"items": ITEMS, "user": "u1"}, 422, "user", r'must be an object, such as {"id": "u1"'),
    ({"items": ITEMS, "tasks": "click"}, 422, "tasks", r'must be a list, such as \["click", "like"\]$'),
    ({"items": ITEMS, "objective": ["click"]}, 422, "objective", r'must be an object, such as {"click": 1.0'),
    ({"itemz": 1}, 422, "itemz", r"unknown field; did you mean items\?$"),
    ({"items": ITEMS, "k": 3}, 422, "k", "unknown field; the fields are request_id, user, context, time, "),
    ({"items": [{"id": 1, "feature": {}}]}, 422, "items[0].feature", r"unknown field; did you mean features\?$"),
    ({"items": [{"features": {}}]}, 422, "items[0].id", "is missing"),
    *(({"items": [{"id": value}]}, 422, "items[0].id", ID) for value in (1.5, None, True, 2**63, -(2**63) - 1)),
    *(({"items": {"id": [value]}}, 422, "items.id[0]", ID) for value in (2**63, -(2**63) - 1, 2**70)),
    ({"items": [*ITEMS, {"id": "v2"}, *ITEMS]}, 422, "items[2].id", "'v1' is already at index 0"),
    ({"items": [{"id": 1}, {"id": "2"}, {"id": "1"}]}, 422, "items[2].id", "'1' is already at index 0"),
    ({"items": {"id": ["v1", "v1"]}}, 422, "items[1].id", "'v1' is already at index 0"),
    ({"items": {"id": [7, 8, 7]}}, 422, "items[2].id", "candidate 7 is already at index 0"),
    ({"items": [{"id": "v1", "features": {"prise": 1}}]}, 422, "items.features.prise", UNKNOWN),
    ({"items": [{"id": "v1", "features": {"item_id": "v2"}}]}, 422, "items.features.item_id", UNKNOWN),
    ({"items": [*ITEMS, {"id": 2, "features": {"price": "x"}}]}, 422, "items[1].features.price", "a number, not 'x'"),
    *(
        ({"items": [{"id": "v1", "features": {"price": value}}]}, 422, "items[0].features.price", f", not {text}")
        for value, text in ((True, "true"), ([None], r"\[null"), ({"items": [1]}, "an object"), ([{}], r"\[an object"))
    ),
    ({"items": [{"id": "v1", "features": {"price": [1]}}]}, 422, "items[0].features.price", "must be a number"),
    ({"items": [*ITEMS, {"id": "v2", "features": {"price": -1}}]}, 422, "items[1].features.price", "log1p"),
    ({"items": [{"id": "v1", "features": {"topics": "topic0_1"}}]}, 422, "items[0].features.topics", LISTS),
    ({"items": [{"id": "v1", "features": {"topics": [{"a": 1}]}}]}, 422, "items[0].features.topics", LISTS),
    ({"items": [{"id": "v1", "features": {"category": 1.5}}]}, 422, "items[0].features.category", ID),
    ({"items": {"id": [1, 2], "features": {"price": [1]}}}, 422, "items.features.price", "has 1 values for 2 ids"),
    ({"items": {"id": [1, 2], "features": {"category": [1, "K1"]}}}, 422, "items.features.category", "mixes integers"),
    ({"items": {"id": [1, 2], "features": {"category": [0.5, 1.0]}}}, 422, "items[0].features.category", ID),
    ({"items": {"id": [1, 2], "features": {"category": [[1], [2]]}}}, 422, "items[0].features.category", ID),
    ({"items": {"id": [1, 2], "features": {"topics": [0.5, 1.0]}}}, 422, "items[0].features.topics", LISTS),
    *((body % number, 422, field, reason) for body, field, reason in WITH_NUMBER for number in NOT_FINITE),
    *((b'{"items": [], "top_n": %b}' % number, 422, "top_n", "must be an integer") for number in NOT_FINITE[:-1]),
    *(({"user": {"id": value}}, 422, "user.id", ID) for value in ([1], 1.5, 2**63, -(2**63) - 1)),
    ({"user": {"features": {"age": "old"}}}, 422, "user.features.age", "must be a number, not 'old'"),
    ({"user": {"features": {"price": 1}}}, 422, "user.features.price", f"unknown user {UNKNOWN}"),
    ({"context": {"hour": "noon"}}, 422, "context.hour", "ids must be integers of 64 bits"),
    ({"context": {"hour": 2**70}}, 422, "context.hour", ID),
    ({"context": {"age": 1}}, 422, "context.age", f"unknown context {UNKNOWN}"),
    *(
        ({"time": f"{year}-01-01T00:00:00Z"}, 422, "time", "must be in the years 1970 to")
        for year in ("0001", 1969, 9999)
    ),
    *(({"time": value}, 422, "time", TIME) for value in ("yesterday", "2025-06-15T16:00:00", 1_750_000_000)),
    ({"tasks": ["klick"]}, 422, "tasks", "unknown task 'klick': choose from click"),
    ({"tasks": ["click", "click"]}, 422, "tasks", "task 'click' is repeated"),
    ({"tasks": []}, 422, "tasks", "must not be empty"),
    ({"tasks": "click"}, 422, "tasks", "must be a list"),
    ({"tasks": [1]}, 422, "tasks[0]", "must be a string"),
    ({"objective": {"klick": 1}}, 422, "objective.klick", "is not among the tasks that are scored"),
    ({"tasks": ["click"], "objective": {"like": 1}}, 422, "objective.like", "not among the tasks .* scored: click$"),
    ({"objective": {}}, 422, "objective", "must not be empty"),
    *(({"objective": {"click": value}}, 422, "objective.click", "must be a number") for value in ("a lot", True, None)),
    *(({"objective": weights}, 422, "objective", ZERO) for weights in ({"click": 0}, {"click": -0.0, "like": 0})),
    ({"objective": {"click": 1e308}}, 422, "objective.click", "must be at most 1000000$"),
    ({"objective": {"click": -1.1e6}}, 422, "objective.click", "must be at least -1000000$"),
    *(({"top_n": value}, 422, "top_n", "must be greater than 0") for value in (0, -1)),
    *(({"top_n": value}, 422, "top_n", "must be an integer") for value in (1.0, True)),
    *(({"deadline_ms": value}, 422, "deadline_ms", r"must be at least 0\.001$") for value in (-1, 0, 1e-300)),
    ({"deadline_ms": 1e300}, 422, "deadline_ms", "must be at most 86400000$"),
    ({"explain": 1}, 422, "explain", "must be true or false"),
    ({"layout": "diagonal"}, 422, "layout", "must be 'rows' or 'columns'"),
    ({"request_id": "x" * 257}, 422, "request_id", "must have at most 256 characters"),
    ({"items": [{"id": "v1"}, {"id": LONG_TEXT}]}, 422, "items[1].id", TOO_LONG),
    ({"items": {"id": ["v1", LONG_TEXT]}}, 422, "items.id[1]", TOO_LONG),
    ({"items": [{"id": "v1", "features": {"category": LONG_TEXT}}]}, 422, "items[0].features.category", TOO_LONG),
    ({"items": [{"id": 1, "features": {"topics": ["a", LONG_TEXT]}}]}, 422, "items[0].features.topics[1]", TOO_LONG),
    ({"items": {"id": [1], "features": {"topics": [["a", LONG_TEXT]]}}}, 422, "items.features.topics[0][1]", TOO_LONG),
    ({"user": {"id": LONG_TEXT}}, 422, "user.id", TOO_LONG),
    ({"context": {"surface": LONG_TEXT}}, 422, "context.surface", TOO_LONG),
    ({"context": {LONG_TEXT: 1}}, 422, f"context.{LONG_TEXT[:40]}", TOO_LONG),
    ({"tasks": [LONG_TEXT]}, 422, "tasks[0]", TOO_LONG),
    ({LONG_TEXT: 1}, 422, LONG_TEXT[:40], TOO_LONG),
    ({"items": [{"id": i} for i in range(201)]}, 413, None, "201 candidates: this service ranks at most 200"),
    ({"items": {"id": list(range(201))}}, 413, None, "201 candidates: this service ranks at most 200"),
    *((body, 422, "body", "must be an object") for body in (b"", b"null", b"[]", b"3")),
    (b"{", 400, "body", f"{BAD_JSON} 1$"),
    (b'{"items": [}', 400, "body", f"{BAD_JSON} 11$"),
    (b'{"items": []', 400, "body", f"{BAD_JSON} 12$"),
    (b"{'items': []}", 400, "body", f"{BAD_JSON} 1$"),
    (b"\x00", 400, "body", f"{BAD_JSON} 0$"),
    (b"{} {}", 400, "body", f"{BAD_JSON} 3$"),
    (b'{"items": ' + b"1" * 10_000 + b"}", 400, "body", "not valid JSON$"),
    *((b'{"items": [{"id": "%b"}]}' % half, 400, "body", SURROGATE) for half in (rb"\ud800", rb"\udfff")),
    (b'{"items": "\xff"}', 400, "body", "not valid UTF-8 at byte 11: encode the JSON as UTF-8$"),
    (b"\xff\xfe{\x00}\x00", 400, "body", "not valid UTF-8 at byte 0: "),
    ('{"id": "ü'.encode()[:-1], 400, "body", "not valid UTF-8 at byte 8: "),
]
"""Body, or the fields that make a body with items invalid; status; named field; pattern of the detail."""


@pytest.mark.parametrize(
    ("body", "status", "field", "reason"), INVALID, ids=[f"{field}-{i}" for i, (_, _, field, _) in enumerate(INVALID)]
)
def test_rank_invalid_body_is_rejected_and_its_field_named(
    client: TestClient,
    document: dict[str, Any],
    body: dict[str, Any] | bytes,
    status: int,
    field: str | None,
    reason: str,
) -> None:
    content = body if isinstance(body, bytes) else json.dumps({"items": ITEMS} | body).encode()
    response = client.post("/v1/rank", content=content, headers={"Content-Type": JSON})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert [error["field"] for error in problem["errors"]] == ([] if field is None else [field])
    assert (field or "") in problem["detail"]
    assert re.search(reason, problem["detail"])
    responses = document["paths"]["/v1/rank"]["post"]["responses"]
    assert fits(problem, responses[str(status)]["content"]["application/problem+json"]["schema"], document)
    if content and status != 400:
        large = client.post("/v1/rank", content=content + b" " * MIN_COLUMNS_BYTES, headers={"Content-Type": JSON})
        assert (large.status_code, large.json()) == (status, problem), "large bodies have another reader"


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
