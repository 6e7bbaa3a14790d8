"""Candidates as an Arrow stream, held against the same candidates as JSON; and streams that nobody should send."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from service.http.media_types import ARROW, JSON
from tests.support.arrow_streams import of_batches, send, stream

REST = {"request_id": "r-1", "user": {"id": "u3", "features": {"age": 31}}, "context": {"hour": 9}}
COLUMNS: dict[str, list[Any]] = {
    "item_id": ["v1", "v2", "v3", "unheard of"],
    "price": [3.5, None, 12, 7.25],
    "topics": [["topic0_1", "topic0_3"], None, [], ["topic0_2"]],
    "category": ["K1", None, "K2", "K1"],
}


def as_json(client: TestClient, rest: dict[str, Any] = REST, **headers: str) -> Any:
    """The answer to the same request in columns."""
    features = {name: values for name, values in COLUMNS.items() if name != "item_id"}
    body = rest | {"items": {"id": COLUMNS["item_id"], "features": features}}
    response = client.post("/v1/rank", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return pa.ipc.open_stream(response.content).read_all() if headers.get("Accept") == ARROW else response.json()


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "lz4"}, {"batch_rows": 1}])
def test_a_stream_means_what_json_means(client: TestClient, options: dict[str, Any]) -> None:
    assert send(client, stream(COLUMNS, REST, **options)) == as_json(client)


TYPES: dict[str, dict[str, pa.DataType]] = {
    "large": {
        "item_id": pa.large_string(),
        "category": pa.large_string(),
        "topics": pa.large_list(pa.large_string()),
        "price": pa.float32(),
    },
    "dictionaries": {
        "item_id": pa.dictionary(pa.int32(), pa.string()),
        "category": pa.dictionary(pa.int8(), pa.string()),
        "topics": pa.list_(pa.dictionary(pa.uint16(), pa.string())),
        "price": pa.float16(),
    },
    "views": {
        "item_id": pa.string_view(),
        "category": pa.string_view(),
        "topics": pa.list_(pa.string_view()),
        "price": pa.decimal128(10, 3),
    },
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("batch_rows", [None, 2])
def test_types_that_hold_the_same_mean_the_same(client: TestClient, kind: str, batch_rows: int | None) -> None:
    arrays = {name: pa.array(values, TYPES[kind][name]) for name, values in COLUMNS.items() if name != "price"}
    arrays["price"] = pa.array(COLUMNS["price"], pa.float64()).cast(TYPES[kind]["price"])
    assert send(client, stream(arrays, REST, batch_rows)) == as_json(client)


def test_batches_may_each_have_their_own_dictionary(client: TestClient) -> None:
    kind = pa.schema([("item_id", pa.dictionary(pa.int32(), pa.string()))])
    each = [pa.array(ids).dictionary_encode() for ids in (["v1", "v2"], ["v3"])]
    body = of_batches(kind, [pa.record_batch([ids], schema=kind) for ids in each])
    assert send(client, body)["items"] == send(client, stream({"item_id": ["v1", "v2", "v3"]}))["items"]


def test_integers_are_ids(client: TestClient) -> None:
    answer = send(client, stream({"item_id": pa.array([7, 9], pa.uint8())}))
    assert sorted(item["id"] for item in answer["items"]) == [7, 9]


def test_columns_of_nulls_are_left_out(client: TestClient) -> None:
    ids = COLUMNS["item_id"]
    nulls = {"price": pa.nulls(4), "topics": pa.nulls(4), "category": pa.nulls(4)}
    assert send(client, stream({"item_id": ids} | nulls, REST)) == send(client, stream({"item_id": ids}, REST))


def test_the_answer_as_a_stream_is_that_of_json(client: TestClient) -> None:
    rest = REST | {"tasks": ["like", "click"], "top_n": 3, "explain": True}
    expected = as_json(client, rest)
    for table in (send(client, stream(COLUMNS, rest), ARROW), as_json(client, rest, Accept=ARROW)):
        summary = json.loads(table.schema.metadata[b"response"])
        assert summary == {name: value for name, value in expected.items() if name != "items"}
        rows = table.to_pylist()
        for row in rows:
            row["scores"] = {task: float(str(np.float32(score))) for task, score in row["scores"].items()}
        assert rows == expected["items"]


def test_no_rows_are_an_empty_answer(client: TestClient) -> None:
    kind = pa.schema([("item_id", pa.string()), ("price", pa.float64())])
    assert send(client, of_batches(kind, []))["items"] == []
    assert send(client, of_batches(kind, []), ARROW).num_rows == 0


def wrong(client: TestClient, body: bytes, status: int, field: str | None, *reasons: str) -> None:
    problem = send(client, body, status=status)
    assert [error["field"] for error in problem["errors"]] == ([] if field is None else [field])
    for reason in reasons:
        assert reason in problem["detail"]


ONE = {"item_id": ["v1", "v2"]}
WRONG: list[tuple[Any, str, str]] = [
    ({"price": [1.0]}, "items.id", "no column 'item_id'"),
    ({"item_id": ["v1", None]}, "items[1].id", "null"),
    ({"item_id": ["v1", "v2", "v1"]}, "items[2].id", "is already at index 0"),
    ({"item_id": [1.0, 2.0]}, "items.id", "double"),
    ({"item_id": [True]}, "items.id", "bool"),
    ({"item_id": pa.array([2**63], pa.uint64())}, "items.id", "64 bits"),
    ({"item_id": [["v1"]]}, "items.id", "list"),
    (ONE | {"prise": [1, 2]}, "items.features.prise", "unknown item feature"),
    (ONE | {"price": ["a", "b"]}, "items.features.price", "numbers"),
    (ONE | {"price": [[1.0], [2.0]]}, "items.features.price", "numbers"),
    (ONE | {"price": [1.0, float("nan")]}, "items[1].features.price", "NaN"),
    (ONE | {"price": [1.0, -1.0]}, "items[1].features.price", "log1p"),
    (ONE | {"category": [1.5, 2.0]}, "items.features.category", "integers or strings"),
    (ONE | {"category": pa.array([1, 2], pa.timestamp("s"))}, "items.features.category", "timestamp"),
    (ONE | {"category": [b"a", b"b"]}, "items.features.category", "binary"),
    (ONE | {"category": [{"a": 1}, {"a": 2}]}, "items.features.category", "struct"),
    (ONE | {"topics": ["a", "b"]}, "items.features.topics", "lists of ids"),
    (ONE | {"topics": [[["a"]], [["b"]]]}, "items.features.topics", "list"),
    (ONE | {"topics": pa.array([["a"], ["b"]], pa.list_view(pa.string()))}, "items.features.topics", "list_view"),
    (
        ONE | {"topics": pa.DictionaryArray.from_arrays([0, 0], pa.array([["a"]]))},
        "items.features.topics",
        "dictionary",
    ),
    (ONE | {"topics": [[1.5], [2]]}, "items.features.topics", "integers or strings"),
]


@pytest.mark.parametrize(("columns", "field", "reason"), WRONG, ids=[f"{f}-{r}" for _, f, r in WRONG])
def test_a_wrong_column_is_named(client: TestClient, columns: Any, field: str, reason: str) -> None:
    wrong(client, stream(columns, REST), 422, field, reason)


def test_a_column_that_stands_twice_is_named(client: TestClient) -> None:
    table = pa.Table.from_arrays([pa.array(["v1"]), pa.array([1.0]), pa.array([2.0])], ["item_id", "price", "price"])
    wrong(client, stream(table), 422, "items.features.price", "2 columns")
    ids = pa.Table.from_arrays([pa.array(["v1"]), pa.array(["v2"])], ["item_id", "item_id"])
    wrong(client, stream(ids), 422, "items.id", "2 columns")


def test_the_layout_of_a_json_answer(client: TestClient) -> None:
    answer = send(client, stream({"item_id": ["v1", "v2"]}, {"layout": "columns"}))
    assert sorted(answer["items"]["id"]) == ["v1", "v2"]


@pytest.mark.parametrize(
    ("rest", "field"),
    [
        ({"user": {"id": [1]}}, "user.id"),
        ({"context": {"hour": "noon"}}, "context.hour"),
        ({"tasks": ["klick"]}, "tasks"),
        ({"top_n": 0}, "top_n"),
        ({"layout": "diagonal"}, "layout"),
        ({"items": []}, "items"),
        ([], "body"),
    ],
)
def test_what_is_wrong_with_the_rest_is_named(client: TestClient, rest: Any, field: str) -> None:
    wrong(client, stream(ONE, rest), 422, field)


def test_the_rest_that_is_no_json_is_400(client: TestClient) -> None:
    table = pa.table(ONE).replace_schema_metadata({"request": '{"user": }'})
    wrong(client, stream(table), 400, "request", "Expecting value at character 9")


def test_too_many_rows_are_413_before_they_are_decoded(client: TestClient) -> None:
    wrong(client, stream({"item_id": range(201)}), 413, None, "201 candidates", "at most 200")
    wrong(client, stream({"item_id": range(201)}, batch_rows=10), 413, None, "201 candidates")


def test_more_batches_than_rows_are_413(client: TestClient) -> None:
    empty = pa.record_batch({"item_id": pa.array([], pa.string())})
    wrong(client, of_batches(empty.schema, [empty] * 300), 413, None, "300 batches")


HUGE = 2**31 - 1
LONG = "c" * 50_000


def often(value: str, times: int) -> pa.Array:
    """A dictionary of one."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int8()), [value])


def views(value: str, times: int) -> pa.Array:
    """Many views of one text."""
    text = value.encode()
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * times), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string_view(), times, buffers)


BOMBS: dict[str, Any] = {
    "compressed": {"item_id": ["v" * 10_000_000]},
    "a dictionary": {"item_id": range(200), "category": often(LONG, 200)},
    "a dictionary in lists": {"item_id": [1], "topics": pa.ListArray.from_arrays([0, 1000], often(LONG, 1000))},
    "views": {"item_id": range(200), "category": views(LONG, 200)},
    "lists of nulls": {"item_id": [1], "topics": pa.ListArray.from_arrays([0, HUGE], pa.nulls(HUGE))},
    "lists of a fixed size": {"item_id": [1], "topics": pa.FixedSizeListArray.from_arrays(pa.nulls(HUGE), HUGE)},
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_few_bytes_that_stand_for_many_are_413(client: TestClient, kind: str) -> None:
    body = stream(BOMBS[kind], compression="zstd" if kind == "compressed" else None)
    assert len(body) < 90_000
    wrong(client, body, 413, None, "at most 100000 are read")


def test_delta_dictionaries_are_refused(client: TestClient) -> None:
    kind = pa.schema([("item_id", pa.dictionary(pa.int32(), pa.string()))])
    grown = [
        pa.DictionaryArray.from_arrays(pa.array([last], pa.int32()), ["v0", "v1", "v2"][: last + 1])
        for last in range(3)
    ]
    body = of_batches(kind, [pa.record_batch([a], schema=kind) for a in grown], emit_dictionary_deltas=True)
    wrong(client, body, 400, "body", "delta dictionaries")


@pytest.mark.parametrize("body", [b"", b"{}", b"ARROW1\0\0", b"\xff\xff\xff\xff\0\0\0\0", b"\xff" * 64, b"\0" * 64])
def test_what_is_no_stream_is_400(client: TestClient, body: bytes) -> None:
    wrong(client, body, 400, "body", "not a readable Arrow stream")


WHOLE = [
    stream(COLUMNS, REST),
    stream(COLUMNS, REST, compression="lz4"),
    stream({n: pa.array(v, TYPES["dictionaries"][n]) for n, v in COLUMNS.items() if n != "price"}, REST, 2),
    stream({n: pa.array(v, TYPES["views"][n]) for n, v in COLUMNS.items() if n != "price"}, REST),
]
EXTREMES = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_broken_stream_makes_the_service_fail(client: TestClient, data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(WHOLE)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) // 8 - 1)) * 8
        match data.draw(st.sampled_from(["byte", "number", "end", "piece"])):
            case "byte":
                body[at + data.draw(st.integers(0, 7))] = data.draw(st.integers(0, 255))
            case "number":
                body[at : at + 8] = struct.pack("<q", data.draw(EXTREMES))
            case "end":
                del body[max(at, 16) :]
            case _:
                body[at : at + 8] = body[:8]
    response = client.post("/v1/rank", content=bytes(body), headers={"Content-Type": ARROW, "Accept": JSON})
    assert response.status_code in (200, 400, 413, 422), response.text
