"""Encoded responses agree with what Python's JSON and PyArrow read from them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import MissingFeatures
from service.engine.response import PreparedRequest, RankResult
from service.http.encode import encode_response
from service.http.media_types import ARROW, JSON
from service.protocol.messages import ColumnarRankResponse, RankResponse

SUMMARY = {"request_id": 'r"1', "model": "m", "version": "1", "degraded": False}
NAMES = ['"quoted", comma', "b", "ü", "d"]
FLOATS = st.floats(-(2.0**99), 2.0**99, width=32)


@st.composite
def results(draw: st.DrawFn) -> RankResult:
    count = draw(st.integers(0, 6))
    tasks = draw(st.lists(st.text(), min_size=1, max_size=3, unique=True))
    values: Any = draw(st.sampled_from([st.text(), st.integers(-(2**63), 2**63 - 1), st.text() | st.integers(0, 9)]))
    ids: Any = draw(st.lists(values, min_size=count, max_size=count))
    if len(set(map(type, ids))) == 1 and draw(st.booleans()):
        ids = pa.array(ids)
    item_mask = draw(arrays.arrays(np.bool_, (count, 2)))
    missing = MissingFeatures(NAMES, [1, 3], [2, 0], np.array(draw(st.tuples(st.booleans(), st.booleans()))), item_mask)
    scores = draw(arrays.arrays(np.float32, (count, len(tasks)), elements=FLOATS))
    total = draw(arrays.arrays(np.float64, count, elements=st.floats(-1e300, 1e300)))
    features, weights = FeatureRequest({"item": RawFeatures(ids, {})}, [count]), np.ones(len(tasks))
    prepared = PreparedRequest(features, tasks, weights, None, False, {}, False, None)
    return RankResult(prepared, np.arange(count), total, scores, missing)


def expected(result: RankResult) -> list[dict[str, Any]]:
    ids = result.ids.to_pylist() if isinstance(result.ids, pa.Array) else result.ids
    return [
        {
            "id": id_,
            "score": float(total),
            "scores": dict(zip(result.tasks, map(float, scores), strict=True)),
            "missing": [name for name, is_missing in zip(NAMES, mask, strict=True) if is_missing],
        }
        for id_, total, scores, mask in zip(ids, result.total, result.scores, result.missing.mask(), strict=True)
    ]


def as_float32(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Round scores to float32; responses have that many digits."""
    return [i | {"scores": {t: float(np.float32(v)) for t, v in i["scores"].items()}} for i in items]


@given(results())
def test_encode_response_rows_hold_the_result(result: RankResult) -> None:
    body = encode_response(result, SUMMARY, JSON, columns=False)
    response = json.loads(body)
    assert as_float32(response["items"]) == expected(result)
    assert response | {"items": []} == SUMMARY | {"items": []}
    RankResponse.model_validate_json(body)


@given(results())
def test_encode_response_columns_hold_the_result(result: RankResult) -> None:
    body = encode_response(result, SUMMARY, JSON, columns=True)
    items = json.loads(body)["items"]
    ColumnarRankResponse.model_validate_json(body)
    rows = [
        {
            "id": id_,
            "score": items["score"][i],
            "scores": {task: column[i] for task, column in items["scores"].items()},
            "missing": [name for name in NAMES if i in items["missing"].get(name, [])],
        }
        for i, id_ in enumerate(items["id"])
    ]
    assert as_float32(rows) == expected(result)
    assert all(items["missing"].values()), "features that no candidate lacks are omitted"


@given(results())
def test_encode_response_stream_holds_the_result(result: RankResult) -> None:
    stream = encode_response(result, SUMMARY, ARROW, columns=False)
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    rows = expected(result)
    if len(set(map(type, (row["id"] for row in rows)))) > 1:  # a column of a stream has one type
        rows = [row | {"id": str(row["id"])} for row in rows]
    assert table.to_pylist() == rows
    assert table.schema.field("scores").type == pa.struct([(task, pa.float32()) for task in result.tasks])
    assert json.loads(table.schema.metadata[b"response"]) == SUMMARY
