"""Bundles whose gate chooses for each candidate, held against the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

import ranking
from pipelines.jobs.publish import publish
from pipelines.jobs.score import score_log
from ranking import FrozenRanker
from ranking.encoding.torch_batch import TorchBatch
from service.app import create_app
from service.settings import Settings

TOLERANCE = 1e-6

GATES = [
    "dselect_k per example",
    "dselect_k per example budget",
    "top_k per example",
    "softmax per example",
    "attentive",
]


@pytest.fixture(scope="module", params=GATES)
def published(
    bundle_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """The bundle as version 1 of model "feed"."""
    repository = tmp_path_factory.mktemp("per-example") / "repository"
    publish(bundle_of(request.param), repository, "feed")
    return repository


@pytest.fixture(scope="module")
def ranker(published: Path) -> FrozenRanker:
    return ranking.load(published / "feed" / "1")


@pytest.fixture(scope="module")
def client(published: Path) -> Iterator[TestClient]:
    app = create_app(Settings(repository=published, max_candidates=200))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def body(request_body: dict[str, Any]) -> dict[str, Any]:
    """A request of many candidates, so that they choose different experts."""
    return request_body | {"items": [{"id": f"v{i}"} for i in range(60)]}


def rank(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/v1/rank", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def candidates(body: dict[str, Any]) -> pa.Table:
    """The request as the table that the library scores."""
    count = len(body["items"])
    columns: dict[str, list[Any]] = {
        "user_id": [body["user"]["id"]] * count,
        "item_id": [i["id"] for i in body["items"]],
    }
    columns |= {name: [value] * count for name, value in (body["user"]["features"] | body["context"]).items()}
    return pa.table(columns)


def test_scores_are_those_of_the_library(client: TestClient, ranker: FrozenRanker, body: dict[str, Any]) -> None:
    by_id = {item["id"]: item["scores"] for item in rank(client, body)["items"]}
    expected = ranker.score(candidates(body))
    assert expected.column_names == ranker.schema.task_names
    for row, item in enumerate(body["items"]):
        for task in expected.column_names:
            assert by_id[item["id"]][task] == pytest.approx(expected[task][row].as_py(), abs=TOLERANCE)


def test_scores_are_those_of_ranker_score_on_the_same_log_rows(
    client: TestClient, ranker: FrozenRanker, logs: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(logs / "log" / "date=2026-01-10" / "part-0.parquet").slice(0, 30)
    pq.write_table(rows, tmp_path / "rows.parquet")
    score_log(ranker, tmp_path / "rows.parquet", tmp_path / "scores.parquet")
    for row, expected in zip(rows.to_pylist(), pq.read_table(tmp_path / "scores.parquet").to_pylist(), strict=True):
        context = {"surface": row["surface"], "hour": row["hour"]}
        (item,) = rank(client, {"user": {"id": row["user_id"]}, "context": context, "items": [{"id": row["item_id"]}]})[
            "items"
        ]
        for task, score in item["scores"].items():
            assert score == pytest.approx(expected[task], abs=TOLERANCE)


def test_a_task_subset_has_the_same_scores(client: TestClient, body: dict[str, Any]) -> None:
    everything = {item["id"]: item["scores"] for item in rank(client, body)["items"]}
    for item in rank(client, body | {"tasks": ["watch_time", "like"]})["items"]:
        assert list(item["scores"]) == ["watch_time", "like"]
        for task, score in item["scores"].items():
            assert score == pytest.approx(everything[item["id"]][task], abs=TOLERANCE)


@pytest.mark.parametrize("items", [[], {"id": [], "features": {}}])
def test_zero_candidates_rank_to_none(client: TestClient, body: dict[str, Any], items: Any) -> None:
    answer = rank(client, body | {"items": items, "explain": True})
    assert answer["items"] == []
    assert answer["explain"]["experts_run"] == []


@pytest.mark.parametrize("count", [1, 2, 60])
@pytest.mark.parametrize("tasks", [["like"], ["click", "watch_time"]])
def test_explain_names_the_experts_that_some_candidate_chose(
    client: TestClient, ranker: FrozenRanker, body: dict[str, Any], count: int, tasks: list[str]
) -> None:
    asked = body | {"items": body["items"][:count], "tasks": tasks, "explain": True}
    explained = rank(client, asked)["explain"]
    inputs = ranker.encoder.encode(ranker.complete(candidates(asked)))
    positions = [ranker.schema.task_names.index(task) for task in tasks]
    chosen = (ranker.graph.routing(TorchBatch.from_numpy(inputs))[:, positions] > 0).flatten(0, 1).any(0)
    assert explained["experts_run"] == chosen.nonzero().flatten().tolist()
    assert explained["experts_total"] == ranker.selection.num_experts
    assert list(explained["tasks"]) == tasks


def test_metadata_is_served(client: TestClient) -> None:
    response = client.get("/v2/models/feed")
    assert response.status_code == 200, response.text
