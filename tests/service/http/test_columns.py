"""``read_columns`` gives the same candidates as the general reader, or leaves the request to it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.schema import CategoricalFeature, InputFeature, NumericFeature, SequenceFeature
from service.engine.request import RawFeatures
from service.engine.values import to_list
from service.http.columns import read_columns
from service.protocol.messages import RankRequest
from service.protocol.problems import Problem

ITEM_FEATURES: dict[str, InputFeature] = {
    "brand": CategoricalFeature(kind="categorical", name="brand", column="brand", owner="item", dim=2),
    "price[€]": NumericFeature(kind="numeric", name="price", column="price[€]", owner="item"),
    "tags": SequenceFeature(kind="sequence", name="tags", column="tags", owner="item", dim=2, max_length=3),
}
INTEGERS = st.integers(-(2**64), 2**65) | st.integers(-9, 9)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=9) | st.sampled_from(["[", "\\", "[[", '"'])
SINGLE = INTEGERS | FLOATS | TEXT | st.booleans() | st.none()
COLUMNS = (
    st.lists(INTEGERS) | st.lists(FLOATS) | st.lists(FLOATS | st.integers(-9, 9)) | st.lists(TEXT)
    | st.lists(SINGLE | st.lists(SINGLE, max_size=2)) | st.lists(st.lists(INTEGERS, max_size=2)) | SINGLE
)  # fmt: skip
ITEMS = st.fixed_dictionaries(
    {}, optional={"id": COLUMNS, "features": st.dictionaries(st.sampled_from([*ITEM_FEATURES, "x"]), COLUMNS) | SINGLE}
)
REQUESTS = st.fixed_dictionaries(
    {"items": ITEMS | COLUMNS},
    optional={"context": st.dictionaries(TEXT, COLUMNS), "tasks": st.lists(TEXT), "x": SINGLE},
)


def read(document: Any, max_length: int = 100) -> tuple[dict[str, Any], RawFeatures] | None:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_columns(body, ITEM_FEATURES, 5, max_length)


@given(REQUESTS, st.booleans())
def test_read_columns_agrees_with_the_general_reader(document: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode(errors="replace")
    try:
        parsed = read_columns(body, ITEM_FEATURES, 1000, 100)
    except Problem:
        pytest.fail("the number of candidates is within the limit")
    if parsed is None:
        return
    rest, candidates = parsed
    ids, columns = candidates.ids, candidates.columns
    expected = json.loads(body)
    items = expected.pop("items")
    assert rest == expected
    request = RankRequest.model_validate({"items": items})
    assert to_list(ids) == request.items.id == items["id"]
    features = items.get("features", {})
    assert {name: to_list(values) for name, values in columns.items()} == features
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            assert len(values) == len(features[name])
            assert all(type(value) in ((int, float) if name == "price[€]" else (int,)) for value in features[name])


def test_read_columns_numbers_are_arrays_and_other_values_lists() -> None:
    features = {"brand": [1, -(2**63), 2**63 - 1], "price[€]": [1, 2.5, -1e300], "tags": [[1], [], [2, 3]]}
    parsed = read({"items": {"id": [1, 2, 3], "features": features}, "tasks": ["a", "b"], "user": {"id": "[u]"}})
    assert parsed is not None
    rest, candidates = parsed
    ids, columns = candidates.ids, candidates.columns
    assert rest == {"tasks": ["a", "b"], "user": {"id": "[u]"}}
    assert [type(values) for values in (ids, *columns.values())] == [np.ndarray] * 3 + [list]
    assert {name: to_list(values) for name, values in columns.items()} == features
    assert columns["brand"].dtype == np.int64
    assert columns["price[€]"].dtype == np.float64


@pytest.mark.parametrize("values", [[1, None], [None], ["a", "b"], [True], [2**63], [1.0]])
def test_read_columns_values_other_than_numbers_are_lists(values: list[Any]) -> None:
    parsed = read({"items": {"id": ["a"], "features": {"brand": values}}})
    assert parsed is not None
    column = parsed[1].columns["brand"]
    assert column == values
    assert type(column) is list


@pytest.mark.parametrize(
    "body",
    [
        b'{"items": {"id": [1, 2], "features": {"brand": [[1], [2]]}}}',
        b'{"items": {"id": [[1], [2]]}}',
        b'{"items": {"id": [1, 2], "features": {"brand": [[1], [2]]}}, "context": {"a": "\\u005b\\u005B"}}',
        b'{"items": {"id": [1], "id": [2]}}',
        b'{"items": {"id": [1]}, "items": {"id": [2]}}',
        b'{"items": {"id": [1], "features": {"brand": [1], "brand": [2]}}}',
        b'{"items": {"id": [1], "features": {"other": [1]}}}',
        b'{"items": {"id": [1], "other": [1]}}',
        b'{"items": {"\\u0000": [1]}}',
        b'{"items": {"id\\u0000": [1]}}',
        b'{"items": {"id": [1]}, "other": 1}',
        b'{"items": {"id": [1, "a"]}}',
        b'{"items": {"id": 1}}',
        b'{"items": {"id": ["' + b"a" * 101 + b'"]}}',
        b'{"items": {"id": [1]}, "context": {"' + b"a" * 101 + b'": 1}}',
        b'{"items": [{"id": 1}]}',
        b'{"items": {}}',
        b'{"items": {"id": [1]}, "context": {"a": 1e999}}',
        b'{"items": {"id": [1]}, "context": {"a": ' + b"9" * 40 + b"}}",
        b'{"items": {"id": [1]}, "context": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"items": {"id": [1]}, "context": {"a": ' + b"[" * 9000 + b"]" * 9000 + b"}}",
        b'{"items": {"id": [1]}',
        b"[]",
        b"3",
        b"",
        b"\xff",
    ],
)
def test_read_columns_unsupported_request_returns_none(body: bytes) -> None:
    assert read(body) is None


def test_read_columns_too_many_candidates_are_413_before_columns_are_read() -> None:
    with pytest.raises(Problem) as caught:
        read({"items": {"id": list(range(6)), "features": {"brand": "not a list"}}})
    assert caught.value.status == 413


def test_read_columns_with_thousands_of_unknown_features_returns_none() -> None:
    assert read({"items": {"id": [1], "features": {str(n): [1] for n in range(50_000)}}}) is None
