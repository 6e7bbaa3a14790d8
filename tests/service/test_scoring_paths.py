"""``POST /v1/rank`` in each format, ``ranking.load().score`` and ``ranker score`` give the same scores or all reject.

Two rankers with the same features are compared: ids are text in the training log of one, and integers in the other.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import ranking
from pipelines.jobs.publish import publish
from pipelines.jobs.score import score_log
from ranking import FrozenRanker
from ranking.artifacts import bundle
from ranking.encoding.columns import to_id_array
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.errors import InvalidInputError, LogError
from ranking.frozen.freeze import freeze
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema
from ranking.settings.gate import SharedBottomConfig
from ranking.settings.model import ModelConfig
from service.app import create_app
from service.http.decode import MIN_COLUMNS_BYTES
from service.http.media_types import ARROW
from service.settings import Settings
from tests.support import rank_request
from tests.support.arrow_streams import stream

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "column": "user_id", "kind": "categorical", "owner": "user", "dim": 3},
    {"name": "item", "column": "item_id", "kind": "categorical", "owner": "item", "dim": 3},
    {"name": "recent", "kind": "sequence", "owner": "user", "table": "item", "dim": 3, "max_length": 2},
    {"name": "age", "kind": "buckets", "owner": "user", "dim": 2, "boundaries": [18, 40]},
    {"name": "brand", "kind": "categorical", "owner": "item", "dim": 3},
    {"name": "shop", "kind": "categorical", "owner": "item", "dim": 3, "hash_buckets": 11},
    {"name": "tags", "kind": "bag", "owner": "item", "dim": 3},
    {"name": "price", "kind": "numeric", "owner": "item", "transform": "log1p"},
    {"name": "tab", "kind": "categorical", "owner": "context", "dim": 3, "default": "home"},
    {"name": "brand_tab", "kind": "cross", "of": ["brand", "tab"], "dim": 3, "hash_buckets": 50},
]
SCHEMA = Schema.model_validate(
    {
        "name": "paths",
        "features": FEATURES,
        "tasks": [{"name": "click", "kind": "binary"}, {"name": "watch", "kind": "regression"}],
    }
)
KNOWN: dict[str, list[Any]] = {"text": ["1", "2", "3", "a", "007", "-4", "ü"], "integer": [1, 2, 3, 10, 7, -4, 0]}
"""Ids of users, items, brands and tags in the training log, by type. The tables know only the first four."""

ANY_ID = st.sampled_from([1, 2, 7, -4, 0, 99, "1", "2", "7", "-4", "0", "99", "a", "ü", "007", "+1", " 1", "1.0", ""])
"""Known and unseen ids in both types; some texts are integers in another notation."""


@dataclass(frozen=True)
class Served:
    """A ranker with a client of a service that serves it, and its bundle loaded by the library."""

    ranker: FrozenRanker
    client: TestClient


def make_ranker(ids: list[Any]) -> FrozenRanker:
    """An untrained ranker, whose scores still depend on every feature."""
    random = np.random.default_rng(0)

    def draw(count: int) -> list[Any]:
        return [ids[i] for i in random.integers(len(ids), size=count)]

    items = {"item_id": ids[:4], "brand": [ids[0], None, ids[2], ids[1]]}
    items |= {"shop": ids[:4], "price": [1.0, 2.0, None, 4.0], "tags": [[ids[1], ids[5]], None, [], [ids[0]]]}
    tables: dict[Owner, FeatureTable] = {
        "user": FeatureTable(
            pa.table({"user_id": ids[:4], "recent": [ids[:3], None, [], [ids[4]]], "age": [30.0, None, 50.0, 17.0]}),
            "user_id",
        ),
        "item": FeatureTable(pa.table(items), "item_id"),
    }
    rows = {"user_id": [*ids, *draw(60)], "item_id": [*ids, *draw(60)], "brand": [*ids, *draw(60)]}
    count = len(rows["user_id"])
    rows |= {"recent": [draw(3) for _ in range(count)], "tags": [draw(2) for _ in range(count)], "shop": draw(count)}
    rows |= {"age": random.uniform(10, 70, count), "price": random.exponential(5, count), "tab": ["home", "x"] * count}
    rows["tab"] = rows["tab"][:count]
    fitter = EncoderFitter(SCHEMA)
    fitter.add(fill_features(pa.table(rows), SCHEMA, tables))
    encoder = fitter.encoder()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        embeddings = Embeddings(SCHEMA, {name: space.size for name, space in encoder.id_mappings.items()})
        for table in SCHEMA.tables:
            torch.nn.init.normal_(embeddings.weight(table))
        config = ModelConfig(expert_layers=(8,), tower_layers=(4,), gate=SharedBottomConfig(kind="shared_bottom"))
        model = MMoE(config, 2, embeddings, DenseInputs(encoder.dense_size, encoder.bins)).eval()
    return freeze(model, encoder, tables, {"click": 1.0, "watch": 0.5})


@pytest.fixture(scope="module", params=["text", "integer"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    ids = KNOWN[request.param]
    ranker = make_ranker(ids)
    golden = ranker.complete(pa.table({"user_id": [*ids, None], "item_id": [*ids, ids[0]]}))
    bundle.write_bundle(ranker, golden, folder / "bundle")
    publish(folder / "bundle", folder / "repository")
    app = create_app(Settings(repository=folder / "repository"))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Served(ranking.load(folder / "bundle"), client)


def one_type(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of which the integers are converted to text; a column of a request has ids of one type."""
    return values.map(lambda value: str(value) if isinstance(value, int) else value)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(st.lists(ANY_ID, min_size=1, max_size=5, unique_by=str))
    as_text = draw(st.booleans())
    cells = one_type(ANY_ID) if as_text else st.integers(-5, 12)
    rows = len(ids)

    def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(st.none() | values, min_size=rows, max_size=rows)

    optional = {
        "brand": column(cells),
        "shop": column(cells),
        "tags": column(st.lists(cells, max_size=3)),
        "price": column(st.floats(0, 1e6) | st.integers(0, 9)),
    }
    user_features = st.fixed_dictionaries(
        {}, optional={"recent": st.none() | st.lists(cells, max_size=4), "age": st.none() | st.integers(0, 90)}
    )
    return {
        "user": {"id": draw(st.none() | ANY_ID), "features": draw(user_features)},
        "context": draw(st.fixed_dictionaries({}, optional={"tab": st.none() | st.sampled_from(["home", "x", "?"])})),
        "items": {"id": ids, "features": draw(st.fixed_dictionaries({}, optional=optional))},
    }


def to_table(request: dict[str, Any]) -> pa.Table:
    """The request as a log, with a column of nulls for each feature that it leaves out."""
    ids, rows = request["items"]["id"], len(request["items"]["id"])
    columns: dict[str, Any] = {"user_id": to_id_array([request["user"]["id"]] * rows), "item_id": to_id_array(ids)}
    for name in ("recent", "age", "tab"):
        columns[name] = pa.array([{**request["user"]["features"], **request["context"]}.get(name)] * rows)
    for name in ("brand", "shop", "tags", "price"):
        columns[name] = pa.array(request["items"]["features"].get(name, [None] * rows))
    return pa.table(columns)


def to_rows(request: dict[str, Any]) -> dict[str, Any]:
    items = request["items"]
    rows = [
        {"id": item, "features": {name: values[i] for name, values in items["features"].items()}}
        for i, item in enumerate(items["id"])
    ]
    return request | {"items": rows}


def rank(served: Served, content: bytes, content_type: str = "application/json") -> list[tuple[Any, dict[str, float]]]:
    """Return id and scores of each candidate, sorted by the text of the id, or nothing if the request is rejected."""
    response = served.client.post("/v1/rank", content=content, headers={"Content-Type": content_type})
    assert response.status_code in (200, 422), response.text
    if response.status_code == 422:
        (error,) = response.json()["errors"]
        assert error["field"] != "body", error
        assert "ids must be integers of 64 bits" in error["reason"], error
        return []
    return sorted(((str(item["id"]), item["scores"]) for item in response.json()["items"]), key=lambda item: item[0])


def library_scores(served: Served, table: pa.Table) -> pa.Table | None:
    """Return the scores by the library, or None if it rejects the rows."""
    try:
        return served.ranker.score(table).drop(["score"])
    except InvalidInputError:
        return None


def command_scores(served: Served, table: pa.Table, folder: Path) -> pa.Table | None:
    """Return the scores of ``ranker score``, or None if it rejects the log."""
    pq.write_table(table, folder / "log.parquet")
    try:
        score_log(served.ranker, folder / "log.parquet", folder / "scores.parquet", allow_missing=True)
    except LogError:
        return None
    return pq.read_table(folder / "scores.parquet").select(["click", "watch"])


@given(request=requests())
def test_all_ways_to_score_a_request_agree(served: Served, request: dict[str, Any]) -> None:
    table = to_table(request)
    expected = library_scores(served, table)
    with tempfile.TemporaryDirectory() as folder:
        assert command_scores(served, table, Path(folder)) == expected
    columns, rows = json.dumps(request).encode(), json.dumps(to_rows(request)).encode()
    arrow_table = pa.table({"item_id": table["item_id"]} | {n: table[n] for n in request["items"]["features"]})
    options = {name: value for name, value in request.items() if name != "items"}
    encoded = arrow_table.set_column(0, "item_id", arrow_table["item_id"].combine_chunks().dictionary_encode())
    ranked = [
        rank(served, columns),
        rank(served, columns + b" " * MIN_COLUMNS_BYTES),  # the reader of large bodies
        rank(served, rows),
        rank(served, stream(arrow_table, options), ARROW),
        rank(served, stream(encoded, options), ARROW),
    ]
    assert all(result == ranked[0] for result in ranked[1:])
    if expected is None:
        assert ranked[0] == []
        return
    scores = {str(item): row for item, row in zip(request["items"]["id"], expected.to_pylist(), strict=True)}
    assert [item for item, _ in ranked[0]] == sorted(scores)
    for item, actual in ranked[0]:
        assert actual == pytest.approx(scores[item], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "integer"), [("1", 1), ("-4", -4), ("7", 7), ("99", 99), ("0", 0), (str(2**63 - 1), 2**63 - 1)]
)
def test_integer_and_its_decimal_text_are_the_same_id(served: Served, text: str, integer: int) -> None:
    def scores(value: Any) -> list[tuple[Any, dict[str, float]]]:
        user = {"id": value, "features": {"recent": [value]}}
        item = {"id": value, "features": {"brand": value, "shop": value, "tags": [value]}}
        return rank(served, json.dumps({"user": user, "items": [item]}).encode())

    assert scores(text) == scores(integer) != []


@pytest.mark.parametrize("served", ["integer"], indirect=True)
@pytest.mark.parametrize("text", ["a", "007", "+1", "1.0", "1e3", "", "٣", "-0", "true", str(2**63)])
@pytest.mark.parametrize("field", ["user.id", "items.id", "recent", "brand", "tags"])
def test_text_that_is_not_an_integer_is_rejected_where_ids_are_integers(served: Served, text: str, field: str) -> None:
    user: dict[str, Any] = {"id": 1, "features": {}}
    item: dict[str, Any] = {"id": 2, "features": {}}
    match field:
        case "user.id":
            user["id"], path = text, "user.id"
        case "items.id":
            item["id"], path = text, "items.id"
        case "recent":
            user["features"]["recent"], path = [text], "user.features.recent"
        case "brand":
            item["features"]["brand"], path = text, "items.features.brand"
        case _:
            item["features"]["tags"], path = [1, text][1:], "items.features.tags"
    response = served.client.post("/v1/rank", json={"user": user, "items": [item]})
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["field"] == path
    assert repr(text) in error["reason"]


def test_every_missing_name_can_be_sent_under_this_name(served: Served) -> None:
    def missing(user: dict[str, Any], context: dict[str, Any], item: dict[str, Any]) -> list[str]:
        document = rank_request.rank(served.client, {"user": user, "context": context, "items": [item]})
        names: list[str] = document["items"][0]["missing"]
        return names

    of_user, of_item = ["recent", "age"], ["brand", "shop", "tags", "price"]
    assert missing({}, {}, {"id": 99}) == ["user.id", "items.id", *of_user, *of_item, "tab"]
    assert missing({"id": 98}, {}, {"id": 99}) == ["user.id", "items.id", *of_user, *of_item, "tab"]
    values: dict[str, Any] = {"recent": [1], "age": 3, "brand": 1, "shop": 1, "tags": [], "price": 1.5, "tab": "home"}
    user = {"id": 1, "features": {name: values[name] for name in of_user}}
    item = {"id": 2, "features": {name: values[name] for name in of_item}}
    assert missing(user, {"tab": "home"}, item) == []
    for name in of_user:
        sent = user | {"features": {other: values[other] for other in of_user if other != name}}
        assert missing(sent | {"id": 98}, {"tab": "home"}, item) == ["user.id", name]
    for name in of_item:
        sent = {"id": 99, "features": {other: values[other] for other in of_item if other != name}}
        assert missing(user, {"tab": "home"}, sent) == ["items.id", name]
