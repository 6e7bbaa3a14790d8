"""Requests that are nearly right: each is answered as the document says, and none makes the service fail."""

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
from tests.support.discretion import indiscretions
from tests.support.json_schema import fits

Path = tuple[str | int, ...]

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

FITTING = [
    *("null", "0", "1", "12", "0.5", "true", "[]", "{}"),
    *('"v7"', '"K1"', '["topic0_1"]', '["click"]', '{"click": 2}', '"columns"'),
]
HOSTILE = [
    *("-1", "1e308", "1e999", "NaN", "-Infinity", "01", "+1", "9223372036854775808", "[[]]", "[null]", '[1, "1"]'),
    *('""', '{"": 1}', '{"id": "v9"}', '["v9", "v9"]', '"../../etc/passwd"'),
    *(r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"'),
    *("'v1'", "9" * 400, "9" * 5000, '"' + "a" * 5000 + '"', "", "\x00", "/* */ 1"),
    *("[" * 50_000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900),
    *('1, "tasks": ["like"]', 'null, "id": "v8"', 'null, "items": []'),  # a key that stands twice
]
TEXTS = st.sampled_from(FITTING) | st.sampled_from(HOSTILE)
"""What stands in the place of a value: JSON or not."""
MARK = "put here"


def places(value: Any, path: Path = ()) -> list[Path]:
    """Paths of all values in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def with_value(document: Any, path: Path, value: Any) -> Any:
    """The document with another value at a path."""
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = with_value(document[path[0]], path[1:], value)
    return copy


@st.composite
def texts(draw: st.DrawFn, bodies: list[dict[str, Any]]) -> bytes:
    """A document with one value, or two, that are others, perhaps cut short or with bytes changed."""
    document = draw(st.sampled_from(bodies))
    chosen = draw(st.lists(st.sampled_from(places(document)), min_size=1, max_size=2, unique=True))
    for number, path in enumerate(sorted(chosen, key=len, reverse=True)):  # inner ones first: there they still are
        document = with_value(document, path, f"{MARK}{number}")
    text = json.dumps(document)
    for number in range(len(chosen)):
        text = text.replace(json.dumps(f"{MARK}{number}"), draw(TEXTS))
    room = b" " * MIN_COLUMNS_BYTES if draw(st.booleans()) else b""  # larger ones are read otherwise
    return room + draw(spoilt(text.encode()))


@st.composite
def spoilt(draw: st.DrawFn, body: bytes) -> bytes:
    """Mostly the bytes as they are; else cut short, or with some of them changed."""
    how = draw(st.sampled_from(["whole"] * 6 + ["cut", "changed"]))
    if how == "cut":
        return body[: draw(st.integers(0, len(body)))]
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 4)) if how == "changed" and body else 0):
        changed[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


FITTING_CELLS: dict[str, list[pa.Array]] = {
    "item_id": [pa.array(["v1", "v2", "v3"]), pa.array([1, 2, 3]), pa.array(["v1", "v2", "x"]).dictionary_encode()],
    "price": [pa.array([1.5, None, 1e308]), pa.array([1, 2, 3], pa.int8()), pa.array([1, 2, 3], pa.decimal128(30, 3))],
    "topics": [pa.array([["topic0_1"], [], None]), pa.array([["a"], [None], None]), pa.nulls(3)],
    "category": [pa.array(["K1", "", None]), pa.array(["K1", "K2", "K1"], pa.large_string())],
}
HOSTILE_CELLS: list[pa.Array] = [
    *(pa.nulls(3), pa.array([1, None, 2**64 - 1], pa.uint64()), pa.array([1.5, float("nan"), float("inf")])),
    *(pa.array(["a", "", "a" * 5000]), pa.array([b"\xff", b"", None]), pa.array([True, None, False])),
    *(pa.array([[1], [], None]), pa.array([[[1]], [], None]), pa.array([{"a": 1}] * 3)),
    *(pa.array(["v1", "v1", "v1"]), pa.array([1, 2, 3], pa.timestamp("us"))),
]
HOSTILE_NAMES = ["item_id", "prise", "", "\x00", "é" * 40]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Columns of which one or none is no feature's or of a wrong type, perhaps with spoilt bytes."""
    names = draw(st.lists(st.sampled_from(list(FITTING_CELLS)), unique=True, min_size=1))
    columns = [(name, draw(st.sampled_from(FITTING_CELLS[name]))) for name in names]
    if draw(st.booleans()):
        hostile = st.tuples(st.sampled_from(HOSTILE_NAMES + names), st.sampled_from(HOSTILE_CELLS))
        columns[draw(st.integers(0, len(columns) - 1))] = draw(hostile)
    table = pa.table([cells for _, cells in columns], names=[name for name, _ in columns])
    rest = draw(st.just(json.dumps(OPTIONS).encode()) | texts([OPTIONS]))
    return draw(spoilt(stream(table.replace_schema_metadata({"request": rest}))))


def answered(client: TestClient, document: dict[str, Any], body: bytes, form: str, accept: str) -> None:
    """Sends a request and holds the answer against the document."""
    response = client.post("/v1/rank", content=body, headers={"Content-Type": form, "Accept": accept})
    assert response.status_code in (200, 400, 413, 422, 504), response.text  # 504: another deadline_ms
    told = document["paths"]["/v1/rank"]["post"]["responses"][str(response.status_code)]["content"]
    kind = response.headers["content-type"]
    assert kind == (accept if response.status_code == 200 else "application/problem+json")
    if kind == ARROW:
        table = pa.ipc.open_stream(response.content).read_all()
        summary = json.loads(table.schema.metadata[b"response"])
        assert fits(summary, document["components"]["schemas"]["RankSummary"], document)
    else:
        assert fits(response.json(), told[kind]["schema"], document)
    assert not indiscretions(response.text if response.status_code >= 400 else "")


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


ANSWERS = st.sampled_from([JSON, ARROW])


@pytest.mark.parametrize("body", BODIES, ids=["rows", "columns", "ids"])
def test_what_is_spoilt_was_right(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/v1/rank", json=body).status_code == 200


@settings(max_examples=800, derandomize=True, database=None, deadline=None)
@given(body=texts(BODIES), accept=ANSWERS)
def test_json_that_is_nearly_right(client: TestClient, document: dict[str, Any], body: bytes, accept: str) -> None:
    answered(client, document, body, JSON, accept)


@settings(max_examples=600, derandomize=True, database=None, deadline=None)
@given(body=streams(), accept=ANSWERS)
def test_streams_that_are_nearly_right(client: TestClient, document: dict[str, Any], body: bytes, accept: str) -> None:
    answered(client, document, body, ARROW, accept)
