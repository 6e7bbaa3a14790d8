"""Arrow streams give the same response as JSON; invalid and hostile streams are rejected."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from service.http.media_types import ARROW
from tests.support.arrow_streams import send, stream, stream_of_batches

OPTIONS = {"request_id": "r-1", "user": {"id": "u3", "features": {"age": 31}}, "context": {"hour": 9}}
COLUMNS: dict[str, list[Any]] = {
    "item_id": ["v1", "v2", "v3", "unknown"],
    "price": [3.5, None, 12, 7.25],
    "topics": [["topic0_1", "topic0_3"], None, [], ["topic0_2"]],
    "category": ["K1", None, "K2", "K1"],
}


def as_json(client: TestClient, options: dict[str, Any] = OPTIONS, **headers: str) -> Any:
    """Response to the same request as JSON in columns."""
    features = {name: values for name, values in COLUMNS.items() if name != "item_id"}
    body = options | {"items": {"id": COLUMNS["item_id"], "features": features}}
    response = client.post("/v1/rank", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return pa.ipc.open_stream(response.content).read_all() if headers.get("Accept") == ARROW else response.json()


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "lz4"}, {"batch_rows": 1}])
def test_arrow_stream_has_the_same_response_as_json(client: TestClient, options: dict[str, Any]) -> None:
    assert send(client, stream(COLUMNS, OPTIONS, **options)) == as_json(client)


def column_types(text: pa.DataType, topics: pa.DataType, price: pa.DataType) -> dict[str, pa.DataType]:
    return {"item_id": text, "category": text, "topics": topics, "price": price}


TEXT, DICTIONARY_8, DICTIONARY_16 = [
    pa.dictionary(index, pa.string()) for index in (pa.int32(), pa.int8(), pa.uint16())
]
TYPES = {
    "large": column_types(pa.large_string(), pa.large_list(pa.large_string()), pa.float32()),
    "dictionaries": column_types(TEXT, pa.list_(DICTIONARY_16), pa.float16()) | {"category": DICTIONARY_8},
    "views": column_types(pa.string_view(), pa.list_(pa.string_view()), pa.decimal128(10, 3)),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("batch_rows", [None, 2])
def test_arrow_equivalent_types_have_the_same_response(client: TestClient, name: str, batch_rows: int | None) -> None:
    types = TYPES[name]
    arrays = {column: pa.array(values, types[column]) for column, values in COLUMNS.items() if column != "price"}
    arrays["price"] = pa.array(COLUMNS["price"], pa.float64()).cast(types["price"])
    assert send(client, stream(arrays, OPTIONS, batch_rows)) == as_json(client)


def test_arrow_batches_with_different_dictionaries_are_accepted(client: TestClient) -> None:
    schema = pa.schema([("item_id", pa.dictionary(pa.int32(), pa.string()))])
    columns = [pa.array(ids).dictionary_encode() for ids in (["v1", "v2"], ["v3"])]
    body = stream_of_batches(schema, [pa.record_batch([ids], schema=schema) for ids in columns])
    assert send(client, body)["items"] == send(client, stream({"item_id": ["v1", "v2", "v3"]}))["items"]


def test_arrow_integer_ids_are_returned_as_integers(client: TestClient) -> None:
    answer = send(client, stream({"item_id": pa.array([7, 9], pa.uint8())}))
    assert sorted(item["id"] for item in answer["items"]) == [7, 9]


def test_arrow_columns_of_nulls_are_ignored(client: TestClient) -> None:
    ids = COLUMNS["item_id"]
    nulls = {"price": pa.nulls(4), "topics": pa.nulls(4), "category": pa.nulls(4)}
    assert send(client, stream({"item_id": ids} | nulls, OPTIONS)) == send(client, stream({"item_id": ids}, OPTIONS))


def shortest(values: dict[str, float]) -> dict[str, float]:
    """Round float32 numbers to as many digits as JSON has."""
    return {name: float(str(np.float32(value))) for name, value in values.items()}


def test_arrow_response_stream_equals_the_json_response(client: TestClient) -> None:
    options = OPTIONS | {"tasks": ["like", "click"], "top_n": 3, "explain": True}
    expected = as_json(client, options)
    for table in (send(client, stream(COLUMNS, options), ARROW), as_json(client, options, Accept=ARROW)):
        summary = json.loads(table.schema.metadata[b"response"])
        assert summary == {name: value for name, value in expected.items() if name != "items"}
        rows = table.to_pylist()
        for row in rows:
            row["scores"] = shortest(row["scores"])
            row["contributions"] = {task: shortest(values) for task, values in row["contributions"].items()}
        assert rows == expected["items"]


def test_arrow_stream_without_rows_has_an_empty_response(client: TestClient) -> None:
    schema = pa.schema([("item_id", pa.string()), ("price", pa.float64())])
    assert send(client, stream_of_batches(schema, []))["items"] == []
    assert send(client, stream_of_batches(schema, []), ARROW).num_rows == 0
    assert send(client, stream({"item_id": []}))["items"] == []


def assert_rejected(client: TestClient, body: bytes, status: int, field: str | None, *reasons: str) -> None:
    problem = send(client, body, status=status)
    assert [error["field"] for error in problem["errors"]] == ([] if field is None else [field])
    for reason in reasons:
        assert reason in problem["detail"]


VALID = {"item_id": ["v1", "v2"]}
TOO_LONG = "x" * 1_025
INVALID: list[tuple[Any, str, str]] = [
    ({"price": [1.0]}, "items.id", "no column 'item_id'"),
    ({"item_id": ["v1", None]}, "items[1].id", "null"),
    ({"item_id": pa.DictionaryArray.from_arrays([1, 0], ["v1", None])}, "items[0].id", "null"),
    ({"item_id": pa.DictionaryArray.from_arrays([0, None], ["v1", "v2"])}, "items[1].id", "null"),
    ({"item_id": pa.nulls(2)}, "items[0].id", "null"),
    ({"item_id": ["v1", "v2", "v1"]}, "items[2].id", "is already at index 0"),
    ({"item_id": pa.DictionaryArray.from_arrays([0, 1], ["v1", "v1"])}, "items[1].id", "is already at index 0"),
    ({"item_id": pa.array([18_000], pa.date32())}, "items.id", "date32"),
    ({"item_id": [b"v1"]}, "items.id", "binary"),
    ({"item_id": [1.0, 2.0]}, "items.id", "double"),
    ({"item_id": [True]}, "items.id", "bool"),
    ({"item_id": pa.array([2**63], pa.uint64())}, "items.id", "64 bits"),
    ({"item_id": [["v1"]]}, "items.id", "list"),
    (VALID | {"prise": [1, 2]}, "items.features.prise", "unknown item feature"),
    (VALID | {"price": ["a", "b"]}, "items.features.price", "numbers"),
    (VALID | {"price": [[1.0], [2.0]]}, "items.features.price", "numbers"),
    (VALID | {"price": [1.0, float("nan")]}, "items[1].features.price", "NaN"),
    (VALID | {"price": [1.0, float("-inf")]}, "items[1].features.price", "infinite"),
    (VALID | {"price": [1.0, -1.0]}, "items[1].features.price", "log1p"),
    (VALID | {"\x00": [1, 2]}, "items.features.\x00", "unknown item feature"),
    (VALID | {"category": [1.5, 2.0]}, "items.features.category", "integers or strings"),
    (VALID | {"category": pa.array([1, 2], pa.timestamp("s"))}, "items.features.category", "timestamp"),
    (VALID | {"category": [b"a", b"b"]}, "items.features.category", "binary"),
    (VALID | {"category": [{"a": 1}, {"a": 2}]}, "items.features.category", "struct"),
    (VALID | {"topics": ["a", "b"]}, "items.features.topics", "lists of ids"),
    (VALID | {"topics": [[["a"]], [["b"]]]}, "items.features.topics", "list"),
    (VALID | {"topics": pa.array([["a"], ["b"]], pa.list_view(pa.string()))}, "items.features.topics", "list_view"),
    (
        VALID | {"topics": pa.DictionaryArray.from_arrays([0, 0], pa.array([["a"]]))},
        "items.features.topics",
        "dictionary",
    ),
    (VALID | {"topics": [[1.5], [2]]}, "items.features.topics", "integers or strings"),
    ({"item_id": ["v1", TOO_LONG]}, "items.id", "more than 1024 characters"),
    ({"item_id": ["v1"], "category": [TOO_LONG]}, "items.features.category", "more than 1024 characters"),
    ({"item_id": ["v1"], "topics": [["a", TOO_LONG]]}, "items.features.topics", "more than 1024 characters"),
]


@pytest.mark.parametrize(("columns", "field", "reason"), INVALID, ids=[f"{f}-{r}" for _, f, r in INVALID])
def test_arrow_invalid_column_is_named(client: TestClient, columns: Any, field: str, reason: str) -> None:
    assert_rejected(client, stream(columns, OPTIONS), 422, field, reason)


def test_arrow_repeated_column_is_named(client: TestClient) -> None:
    table = pa.Table.from_arrays([pa.array(["v1"]), pa.array([1.0]), pa.array([2.0])], ["item_id", "price", "price"])
    assert_rejected(client, stream(table), 422, "items.features.price", "2 columns")
    ids = pa.Table.from_arrays([pa.array(["v1"]), pa.array(["v2"])], ["item_id", "item_id"])
    assert_rejected(client, stream(ids), 422, "items.id", "2 columns")


def test_arrow_stream_layout_option_applies_to_the_json_response(client: TestClient) -> None:
    answer = send(client, stream({"item_id": ["v1", "v2"]}, {"layout": "columns"}))
    assert sorted(answer["items"]["id"]) == ["v1", "v2"]


INVALID_OPTIONS: list[tuple[Any, str]] = [
    *(({"user": {"id": [1]}}, "user.id"), ({"context": {"hour": "noon"}}, "context.hour"), ([], "request")),
    *(({name: value}, name) for name, value in {"tasks": ["klick"], "top_n": 0, "items": []}.items()),
]


@pytest.mark.parametrize(("options", "field"), INVALID_OPTIONS)
def test_arrow_invalid_option_is_named(client: TestClient, options: Any, field: str) -> None:
    assert_rejected(client, stream(VALID, options), 422, field)


def test_arrow_options_that_are_not_json_are_400(client: TestClient) -> None:
    table = pa.table(VALID).replace_schema_metadata({"request": '{"user": }'})
    assert_rejected(client, stream(table), 400, "request", "Expecting value at character 9")


def test_arrow_too_many_rows_are_413(client: TestClient) -> None:
    assert_rejected(client, stream({"item_id": range(201)}), 413, None, "201 candidates", "at most 200")
    assert_rejected(client, stream({"item_id": range(201)}, batch_rows=10), 413, None, "201 candidates")


def test_arrow_too_many_batches_are_413(client: TestClient) -> None:
    empty = pa.record_batch({"item_id": pa.array([], pa.string())})
    assert_rejected(client, stream_of_batches(empty.schema, [empty] * 300), 413, None, "300 batches")


HUGE = 2**31 - 1
LONG = "c" * 50_000


def repeated(value: str, count: int) -> pa.Array:
    """A dictionary of one value, which every row refers to."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), [value])


def views(value: str, count: int) -> pa.Array:
    """Many views of one text."""
    text = value.encode()
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string_view(), count, buffers)


BOMBS: dict[str, Any] = {
    "compressed": {"item_id": ["v" * 10_000_000]},
    "a dictionary": {"item_id": range(200), "category": repeated(LONG, 200)},
    "a dictionary in lists": {"item_id": [1], "topics": pa.ListArray.from_arrays([0, 1000], repeated(LONG, 1000))},
    "views": {"item_id": range(200), "category": views(LONG, 200)},
    "lists of nulls": {"item_id": [1], "topics": pa.ListArray.from_arrays([0, HUGE], pa.nulls(HUGE))},
    "lists of a fixed size": {"item_id": [1], "topics": pa.FixedSizeListArray.from_arrays(pa.nulls(HUGE), HUGE)},
}


@pytest.mark.parametrize("name", BOMBS)
def test_arrow_small_stream_with_huge_columns_is_413(client: TestClient, name: str) -> None:
    body = stream(BOMBS[name], compression="zstd" if name == "compressed" else None)
    assert len(body) < 90_000
    assert_rejected(client, body, 413, None, "at most 100000 are read")


def test_arrow_delta_dictionaries_are_rejected(client: TestClient) -> None:
    schema = pa.schema([("item_id", pa.dictionary(pa.int32(), pa.string()))])
    columns = [
        pa.DictionaryArray.from_arrays(pa.array([last], pa.int32()), ["v0", "v1", "v2"][: last + 1])
        for last in range(3)
    ]
    body = stream_of_batches(
        schema, [pa.record_batch([ids], schema=schema) for ids in columns], emit_dictionary_deltas=True
    )
    assert_rejected(client, body, 400, "body", "delta dictionaries")


def test_arrow_ids_that_are_not_utf8_are_400(client: TestClient) -> None:
    body = stream({"item_id": ["v1", "v2"]})
    assert body.count(b"v1v2") == 1
    assert_rejected(client, body.replace(b"v1v2", b"v1\xffv"), 400, "body", "not a readable Arrow stream")


@pytest.mark.parametrize("body", [b"", b"{}", b"ARROW1\0\0", b"\xff\xff\xff\xff\0\0\0\0", b"\xff" * 64, b"\0" * 64])
def test_arrow_body_that_is_not_a_stream_is_400(client: TestClient, body: bytes) -> None:
    assert_rejected(client, body, 400, "body", "not a readable Arrow stream")
