"""Sequences, buckets, crosses and defaults over HTTP: in the request, looked up, missing and invalid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fastapi.testclient import TestClient

from pipelines.jobs.publish import publish
from ranking import FrozenRanker
from ranking.artifacts import bundle
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.frozen.freeze import freeze
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema
from ranking.settings.gate import SharedBottomConfig
from ranking.settings.model import ModelConfig
from service.app import create_app
from service.settings import Settings
from tests.support.rank_request import rank

FEATURES: list[dict[str, Any]] = [
    {"name": "item_id", "kind": "categorical", "owner": "item", "dim": 4},
    {"name": "recent", "kind": "sequence", "owner": "user", "table": "item_id", "dim": 4, "max_length": 2},
    {"name": "tab", "kind": "categorical", "owner": "context", "dim": 3, "default": "home"},
    {"name": "age_band", "column": "age", "kind": "buckets", "owner": "user", "dim": 3, "boundaries": [18, 40]},
    {"name": "item_tab", "kind": "cross", "of": ["item_id", "tab"], "dim": 3, "hash_buckets": 50},
]
SCHEMA = Schema.model_validate({"name": "kinds", "features": FEATURES, "tasks": [{"name": "click", "kind": "binary"}]})
TABLES: dict[Owner, FeatureTable] = {
    "user": FeatureTable(
        pa.table({"user_id": ["u1", "u2"], "recent": [[1, 2, 3], None], "age": [30.0, None]}), "user_id"
    )
}


@pytest.fixture(scope="module")
def ranker() -> FrozenRanker:
    """An untrained model, whose scores still depend on every feature."""
    random = np.random.default_rng(0)
    rows = pa.table(
        {"user_id": ["u1"] * 40, "item_id": random.integers(10, size=40), "tab": random.choice(["home", "search"], 40)}
    )
    fitter = EncoderFitter(SCHEMA)
    fitter.add(fill_features(rows, SCHEMA, TABLES))
    encoder = fitter.encoder()
    torch.manual_seed(0)
    embeddings = Embeddings(SCHEMA, {name: space.size for name, space in encoder.id_mappings.items()})
    for table in SCHEMA.tables:
        torch.nn.init.normal_(embeddings.weight(table))
    config = ModelConfig(expert_layers=(8,), tower_layers=(4,), gate=SharedBottomConfig(kind="shared_bottom"))
    return freeze(
        MMoE(config, 1, embeddings, DenseInputs(encoder.dense_size, encoder.bins)).eval(),
        encoder,
        TABLES,
        {"click": 1.0},
    )


@pytest.fixture(scope="module")
def client(ranker: FrozenRanker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("kinds")
    golden = ranker.complete(pa.table({"user_id": ["u1", "u2", None], "item_id": [1, 2, 3]}))
    bundle.write_bundle(ranker, golden, folder / "bundle")
    publish(folder / "bundle", folder / "repository")
    with TestClient(create_app(Settings(repository=folder / "repository")), raise_server_exceptions=False) as client:
        yield client


def request_body(user: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    return {"user": user, "context": context, "items": [{"id": 1}, {"id": 7}]}


def scores(client: TestClient, user: dict[str, Any], context: dict[str, Any]) -> list[float]:
    """Return the scores of items 1 and 7."""
    by_id = {item["id"]: item["score"] for item in rank(client, request_body(user, context))["items"]}
    return [by_id[1], by_id[7]]


def missing(client: TestClient, user: dict[str, Any], context: dict[str, Any]) -> list[str]:
    first, second = (item["missing"] for item in rank(client, request_body(user, context), explain=True)["items"])
    assert first == second
    names: list[str] = first
    return names


def test_rank_features_of_the_request_score_as_in_the_library(client: TestClient, ranker: FrozenRanker) -> None:
    row = {"recent": [[5, 1]] * 2, "age": [17.0] * 2, "tab": ["search"] * 2}
    expected = ranker.score(pa.table({"user_id": ["u9"] * 2, "item_id": [1, 7], **row}))["click"].to_pylist()
    actual = scores(client, {"id": "u9", "features": {"recent": [5, 1], "age": 17}}, {"tab": "search"})
    assert actual == pytest.approx(expected, abs=1e-6)


def test_rank_absent_sequence_is_looked_up(client: TestClient) -> None:
    looked_up = scores(client, {"id": "u1"}, {"tab": "home"})
    sent = scores(client, {"id": "u1", "features": {"recent": [1, 2, 3]}}, {"tab": "home"})
    other = scores(client, {"id": "u1", "features": {"recent": [1]}}, {"tab": "home"})
    assert looked_up == sent != other


def test_rank_sequence_is_truncated_to_its_newest_values(client: TestClient) -> None:
    def scores_of(recent: list[int]) -> list[float]:
        return scores(client, {"id": "u1", "features": {"recent": recent}}, {})

    assert scores_of([9, 8, 1, 2]) == scores_of([1, 2]) != scores_of([2, 9])


def test_rank_numbers_in_one_bucket_have_the_same_scores(client: TestClient) -> None:
    def scores_of(age: float) -> list[float]:
        return scores(client, {"id": "u1", "features": {"age": age}}, {})

    assert scores_of(18) == scores_of(39.9) != scores_of(40)


def test_rank_default_replaces_an_absent_feature_that_is_still_listed_as_missing(client: TestClient) -> None:
    assert scores(client, {"id": "u1"}, {}) == scores(client, {"id": "u1"}, {"tab": "home"})
    assert missing(client, {"id": "u1"}, {}) == ["tab"]
    assert missing(client, {"id": "u2"}, {"tab": "home"}) == ["recent", "age"]


@pytest.mark.parametrize(
    ("user", "context", "field", "reason"),
    [
        ({"recent": 3}, {}, "user.features.recent", "must be a list of 64-bit integers or strings, the newest last"),
        ({"recent": [1.5]}, {}, "user.features.recent", "must be a list"),
        ({"recent": ["a"]}, {}, "user.features.recent", "ids must be integers"),
        ({"age": "old"}, {}, "user.features.age", "must be a number, not 'old'"),
        ({}, {"item_tab": 3}, "context.item_tab", "unknown context feature: this ranker reads tab"),
    ],
)
def test_rank_invalid_feature_is_named(
    client: TestClient, user: dict[str, Any], context: dict[str, Any], field: str, reason: str
) -> None:
    response = client.post("/v1/rank", json=request_body({"id": "u1", "features": user}, context))
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["field"].startswith(field)
    assert reason in error["reason"]


def test_metadata_lists_the_input_features(client: TestClient) -> None:
    assert client.get("/v2/models/kinds").json()["inputs"] == [
        {"name": "item_id", "datatype": "INT64", "shape": [-1], "kind": "categorical", "owner": "item"},
        {"name": "user_id", "datatype": "BYTES", "shape": [1], "kind": "id", "owner": "user"},
        {
            "name": "recent",
            "datatype": "INT64",
            "shape": [1, -1],
            "kind": "sequence",
            "owner": "user",
            "max_length": 2,
        },
        {"name": "tab", "datatype": "BYTES", "shape": [1], "kind": "categorical", "owner": "context"},
        {"name": "age", "datatype": "FP64", "shape": [1], "kind": "buckets", "owner": "user"},
    ]


@pytest.mark.parametrize(
    "recent",
    [
        {"datatype": "INT64", "shape": [1, 2], "data": [5, 1]},
        {"datatype": "INT64", "shape": [2, 3], "data": [5, 1, -1, 5, 1, -1]},
        {"datatype": "BYTES", "shape": [1, 3], "data": [["5", "1", ""]]},
    ],
)
def test_infer_with_lists_equals_rank(client: TestClient, recent: dict[str, Any]) -> None:
    tensors = [
        {"name": "item_id", "datatype": "INT64", "shape": [2], "data": [1, 7]},
        {"name": "user_id", "datatype": "BYTES", "shape": [1], "data": ["u9"]},
        {"name": "tab", "datatype": "BYTES", "shape": [1], "data": ["search"]},
        {"name": "recent", **recent},
    ]
    response = client.post("/v2/models/kinds/infer", json={"inputs": tensors, "outputs": [{"name": "score"}]})
    assert response.status_code == 200, response.text
    expected = scores(client, {"id": "u9", "features": {"recent": [5, 1]}}, {"tab": "search"})
    assert response.json()["outputs"][0]["data"] == pytest.approx(expected, abs=1e-5)


def test_infer_list_without_a_dimension_of_lists_is_named(client: TestClient) -> None:
    tensors = [
        {"name": "item_id", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "recent", "datatype": "INT64", "shape": [1], "data": [1]},
    ]
    response = client.post("/v2/models/kinds/infer", json={"inputs": tensors})
    assert response.json() == {"error": "inputs.recent: has the shape [1]: send [rows, length of lists]"}


def test_openapi_document_describes_sequences(client: TestClient) -> None:
    user = client.get("/openapi.json").json()["components"]["schemas"]["User"]["properties"]["features"]
    assert "for a sequence, the newest last" in user["description"]
