"""Mutated requests have responses that match the OpenAPI document, and never cause a server error."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from service.http.decode import MIN_COLUMNS_BYTES
from service.http.media_types import ARROW, JSON
from tests.support.arrow_streams import stream
from tests.support.disclosure import internal_details
from tests.support.json_schema import fits

JsonPath = tuple[str | int, ...]

OPTIONS: dict[str, Any] = {
    "request_id": "r-1",
    "user": {"id": "u3", "features": {"age": 31}},
    "context": {"surface": "home", "hour": 9},
    "tasks": ["click", "like"],
    "objective": {"click": 1.0, "like": 5.0},
    "top_n": 2,
    "deadline_ms": 60_000.0,
    "explain": True,
}
FEATURES = {"price": [3.5, None, 12], "topics": [["topic0_1"], None, []], "category": ["K1", None, "K2"]}
ROWS = [{"id": f"v{i}", "features": {name: values[i] for name, values in FEATURES.items()}} for i in range(3)]
COLUMNS = {"id": ["v0", "v1", "v2"], "features": FEATURES}
BODIES: list[dict[str, Any]] = [
    OPTIONS | {"items": ROWS},
    OPTIONS | {"items": COLUMNS, "layout": "columns"},
    {"items": {"id": [1, 2, 3]}},
]

PLAUSIBLE = [
    *("null", "0", "1", "12", "0.5", "true", "[]", "{}"),
    *('"v7"', '"K1"', '["topic0_1"]', '["click"]', '{"click": 2}', '"columns"'),
]
HOSTILE = [
    *("-1", "1e308", "1e999", "NaN", "-Infinity", "01", "+1", "9223372036854775808", "[[]]", "[null]", '[1, "1"]'),
    *('""', '{"": 1}', '{"id": "v9"}', '["v9", "v9"]', '"../../etc/passwd"'),
    *(r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"'),
    *("'v1'", "9" * 400, "9" * 5000, '"' + "a" * 5000 + '"', "", "\x00", "/* */ 1"),
    *("[" * 50_000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900),
    *('1, "tasks": ["like"]', 'null, "id": "v8"', 'null, "items": []'),  # a repeated key
]
REPLACEMENTS = st.sampled_from(PLAUSIBLE) | st.sampled_from(HOSTILE)
"""Text in place of a value, valid JSON or not."""
PLACEHOLDER = "placeholder"


def paths(value: Any, path: JsonPath = ()) -> list[JsonPath]:
    """Return the paths of all values of a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(child for key, member in members for child in paths(member, (*path, key)))]


def with_value(document: Any, path: JsonPath, value: Any) -> Any:
    """Return a copy of a document with another value at a path."""
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = with_value(document[path[0]], path[1:], value)
    return copy


@st.composite
def mutated_json(draw: st.DrawFn, bodies: list[dict[str, Any]]) -> bytes:
    """A document with one or two replaced values, sometimes truncated or with changed bytes."""
    document = draw(st.sampled_from(bodies))
    mutated = draw(st.lists(st.sampled_from(paths(document)), min_size=1, max_size=2, unique=True))
    for number, path in enumerate(sorted(mutated, key=len, reverse=True)):  # inner values before their containers
        document = with_value(document, path, f"{PLACEHOLDER}{number}")
    text = json.dumps(document)
    for number in range(len(mutated)):
        text = text.replace(json.dumps(f"{PLACEHOLDER}{number}"), draw(REPLACEMENTS))
    padding = b" " * MIN_COLUMNS_BYTES if draw(st.booleans()) else b""  # large bodies have another reader
    return padding + draw(damaged(text.encode()))


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """Usually the same bytes; else truncated, or with up to four changed bytes."""
    damage = draw(st.sampled_from(["none"] * 6 + ["truncated", "changed"]))
    if damage == "truncated":
        return body[: draw(st.integers(0, len(body)))]
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 4)) if damage == "changed" and body else 0):
        changed[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


PLAUSIBLE_COLUMNS: dict[str, list[pa.Array]] = {
    "item_id": [pa.array(["v1", "v2", "v3"]), pa.array([1, 2, 3]), pa.array(["v1", "v2", "x"]).dictionary_encode()],
    "price": [pa.array([1.5, None, 1e308]), pa.array([1, 2, 3], pa.int8()), pa.array([1, 2, 3], pa.decimal128(30, 3))],
    "topics": [pa.array([["topic0_1"], [], None]), pa.array([["a"], [None], None]), pa.nulls(3)],
    "category": [pa.array(["K1", "", None]), pa.array(["K1", "K2", "K1"], pa.large_string())],
}
HOSTILE_COLUMNS: list[pa.Array] = [
    *(pa.nulls(3), pa.array([1, None, 2**64 - 1], pa.uint64()), pa.array([1.5, float("nan"), float("inf")])),
    *(pa.array(["a", "", "a" * 5000]), pa.array([b"\xff", b"", None]), pa.array([True, None, False])),
    *(pa.array([[1], [], None]), pa.array([[[1]], [], None]), pa.array([{"a": 1}] * 3)),
    *(pa.array(["v1", "v1", "v1"]), pa.array([1, 2, 3], pa.timestamp("us"))),
]
HOSTILE_NAMES = ["item_id", "prise", "", "\x00", "é" * 40]


@st.composite
def mutated_streams(draw: st.DrawFn) -> bytes:
    """A stream with at most one hostile name or column, sometimes damaged."""
    names = draw(st.lists(st.sampled_from(list(PLAUSIBLE_COLUMNS)), unique=True, min_size=1))
    columns = [(name, draw(st.sampled_from(PLAUSIBLE_COLUMNS[name]))) for name in names]
    if draw(st.booleans()):
        hostile = st.tuples(st.sampled_from(HOSTILE_NAMES + names), st.sampled_from(HOSTILE_COLUMNS))
        columns[draw(st.integers(0, len(columns) - 1))] = draw(hostile)
    table = pa.table([column for _, column in columns], names=[name for name, _ in columns])
    options = draw(st.just(json.dumps(OPTIONS).encode()) | mutated_json([OPTIONS]))
    return draw(damaged(stream(table.replace_schema_metadata({"request": options}))))


def check_response(client: TestClient, document: dict[str, Any], body: bytes, content_type: str, accept: str) -> None:
    """Send a request and validate its response against the OpenAPI document."""
    response = client.post("/v1/rank", content=body, headers={"Content-Type": content_type, "Accept": accept})
    assert response.status_code in (200, 400, 413, 422, 504), response.text  # 504: mutated deadline_ms
    content = document["paths"]["/v1/rank"]["post"]["responses"][str(response.status_code)]["content"]
    media_type = response.headers["content-type"]
    assert media_type == (accept if response.status_code == 200 else "application/problem+json")
    if media_type == ARROW:
        table = pa.ipc.open_stream(response.content).read_all()
        summary = json.loads(table.schema.metadata[b"response"])
        assert fits(summary, document["components"]["schemas"]["RankSummary"], document)
    else:
        assert fits(response.json(), content[media_type]["schema"], document)
    assert not internal_details(response.text if response.status_code >= 400 else "")


ACCEPT = st.sampled_from([JSON, ARROW])


@pytest.mark.parametrize("body", BODIES, ids=["rows", "columns", "ids"])
def test_unmutated_request_is_valid(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/v1/rank", json=body).status_code == 200


@settings(max_examples=400)
@given(body=mutated_json(BODIES), accept=ACCEPT)
def test_mutated_json_has_a_documented_response(
    client: TestClient, document: dict[str, Any], body: bytes, accept: str
) -> None:
    check_response(client, document, body, JSON, accept)


@settings(max_examples=300)
@given(body=mutated_streams(), accept=ACCEPT)
def test_mutated_stream_has_a_documented_response(
    client: TestClient, document: dict[str, Any], body: bytes, accept: str
) -> None:
    check_response(client, document, body, ARROW, accept)
