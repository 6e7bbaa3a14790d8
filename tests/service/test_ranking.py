"""What POST /v1/rank answers, held against the library."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from pipelines.data.reader import LogReader
from pipelines.jobs.score import score_log
from ranking import FrozenRanker
from service.backends.select import select_backend
from service.engine.request_encoder import RequestEncoder
from service.engine.response import RankResult, prepare, sort_candidates
from service.engine.validation import ParsedRequest
from service.protocol.messages import RankRequest

TOLERANCE = 1e-5


def rank(client: TestClient, body: dict[str, Any], path: str = "/v1/rank") -> dict[str, Any]:
    response = client.post(path, json=body)
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


def test_scores_are_those_of_the_library(
    client: TestClient, ranker: FrozenRanker, request_body: dict[str, Any]
) -> None:
    answer = rank(client, request_body)
    expected = ranker.score(candidates(request_body))
    by_id = {item["id"]: item["scores"] for item in answer["items"]}
    for row, item in enumerate(request_body["items"]):
        for task in expected.column_names:
            assert by_id[item["id"]][task] == pytest.approx(expected[task][row].as_py(), abs=TOLERANCE)


def test_scores_are_those_of_ranker_score_on_the_same_log_rows(
    client: TestClient, ranker: FrozenRanker, logs: Path, tmp_path: Path
) -> None:
    rows = pq.read_table(logs / "log" / "date=2026-01-10" / "part-0.parquet").slice(0, 60)
    pq.write_table(rows, tmp_path / "rows.parquet")
    score_log(ranker, tmp_path / "rows.parquet", tmp_path / "scores.parquet")
    offline = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    for row, expected in zip(rows.to_pylist(), offline, strict=True):
        body = {
            "user": {"id": row["user_id"]},
            "context": {"surface": row["surface"], "hour": row["hour"]},
            "items": [{"id": row["item_id"]}],
        }
        (item,) = rank(client, body)["items"]
        for task, score in item["scores"].items():
            assert score == pytest.approx(expected[task], abs=TOLERANCE)


def test_best_first_and_ties_in_the_order_of_the_request(client: TestClient, request_body: dict[str, Any]) -> None:
    scores = [item["score"] for item in rank(client, request_body)["items"]]
    assert scores == sorted(scores, reverse=True)
    unknown = [{"id": f"never-seen-{i}"} for i in range(5)]
    answer = rank(client, request_body | {"items": unknown})
    assert [item["id"] for item in answer["items"]] == [item["id"] for item in unknown]


def test_rows_and_columns_mean_the_same(client: TestClient, request_body: dict[str, Any]) -> None:
    rows = [{"id": "v1", "features": {"price": 3.5, "topics": ["topic0_3"]}}, {"id": "v2"}]
    columns = {"id": ["v1", "v2"], "features": {"price": [3.5, None], "topics": [["topic0_3"], None]}}
    assert rank(client, request_body | {"items": rows}) == rank(client, request_body | {"items": columns})


def test_a_null_feature_is_one_that_is_left_out(client: TestClient, request_body: dict[str, Any]) -> None:
    left_out = rank(client, request_body | {"items": [{"id": "v1"}]})
    null = rank(client, request_body | {"items": [{"id": "v1", "features": {"price": None, "topics": None}}]})
    assert left_out == null


def test_features_of_the_request_win_over_the_tables(client: TestClient, request_body: dict[str, Any]) -> None:
    known = rank(client, request_body | {"items": [{"id": "v1"}]})["items"][0]
    other = rank(client, request_body | {"items": [{"id": "v1", "features": {"price": 900.0, "quality": -4}}]})[
        "items"
    ][0]
    assert known["scores"] != other["scores"]


def test_what_is_known_nowhere_is_named_in_missing(client: TestClient, request_body: dict[str, Any]) -> None:
    items = [{"id": "v1"}, {"id": "never-seen", "features": {"price": 2.0}}]
    answer = rank(client, {"user": {"id": "u3"}, "context": {"hour": 9}, "items": items})
    missing = {item["id"]: item["missing"] for item in answer["items"]}
    assert missing["never-seen"] == ["category", "author", "quality", "topics", "surface"]
    assert "surface" in missing["v1"]
    assert "category" not in missing["v1"]


def test_an_unknown_user_and_no_user_are_ranked(client: TestClient, request_body: dict[str, Any]) -> None:
    stranger = rank(client, request_body | {"user": {"id": "nobody"}})
    assert "country" in stranger["items"][0]["missing"]
    assert "user_id" not in stranger["items"][0]["missing"]  # it is given, if never seen
    nobody = rank(client, request_body | {"user": {}})
    assert "user_id" in nobody["items"][0]["missing"]


def test_zero_candidates_rank_to_none(client: TestClient, request_body: dict[str, Any]) -> None:
    for items in ([], {"id": [], "features": {}}):
        answer = rank(client, request_body | {"items": items, "explain": True})
        assert answer["items"] == []
        assert answer["explain"]["experts_run"] == []


def test_a_task_subset_has_the_same_scores(client: TestClient, request_body: dict[str, Any]) -> None:
    everything = {item["id"]: item["scores"] for item in rank(client, request_body)["items"]}
    for item in rank(client, request_body | {"tasks": ["like", "watch_time"]})["items"]:
        assert list(item["scores"]) == ["like", "watch_time"]
        for task, score in item["scores"].items():
            assert score == pytest.approx(everything[item["id"]][task], abs=TOLERANCE)


def test_the_objective_is_the_weighted_sum(
    client: TestClient, request_body: dict[str, Any], ranker: FrozenRanker
) -> None:
    for objective in (None, {"click": 2.0, "dislike": -30.0}):
        weights = objective or ranker.objective
        for item in rank(client, request_body | ({"objective": objective} if objective else {}))["items"]:
            assert item["score"] == pytest.approx(sum(w * item["scores"][t] for t, w in weights.items()), abs=1e-5)


def test_the_default_objective_keeps_to_the_tasks_asked_for(client: TestClient, request_body: dict[str, Any]) -> None:
    for item in rank(client, request_body | {"tasks": ["like"]})["items"]:
        assert item["score"] == pytest.approx(5.0 * item["scores"]["like"])
    for item in rank(client, request_body | {"tasks": ["rating", "watch_time"]})["items"]:
        assert item["score"] == pytest.approx(item["scores"]["rating"])


def test_top_n_keeps_the_best(client: TestClient, request_body: dict[str, Any]) -> None:
    everything = rank(client, request_body)["items"]
    assert rank(client, request_body | {"top_n": 3})["items"] == everything[:3]
    assert rank(client, request_body | {"top_n": 300})["items"] == everything


def test_explain_names_the_experts_that_ran(
    client: TestClient, request_body: dict[str, Any], ranker: FrozenRanker
) -> None:
    explained = rank(client, request_body | {"tasks": ["like"], "explain": True})["explain"]
    chosen = ranker.selection.tasks["like"]
    assert explained["experts_run"] == sorted(chosen)
    assert explained["experts_total"] == ranker.selection.num_experts
    assert explained["tasks"] == {"like": {str(expert): weight for expert, weight in chosen.items()}}


def ranked(ranker: FrozenRanker, asked: ParsedRequest) -> RankResult:
    """As the service does it, but without its queue."""
    encoder = RequestEncoder(ranker)
    prepared = prepare(ranker, encoder, asked)
    halves = encoder(prepared.request)
    (missing,) = encoder.missing(halves, prepared.request.counts)
    return sort_candidates(
        prepared, select_backend(ranker, "torch").scores(halves, [task.name for task in prepared.tasks]), missing
    )


def test_experts_that_no_asked_for_task_chose_do_not_run(ranker: FrozenRanker, request_body: dict[str, Any]) -> None:
    used = ranker.selection.experts_for(["like"])
    assert used != ranker.selection.experts_used, "the fixture's tasks share all experts: choose another seed"
    poisoned = {
        name: np.full_like(weight, np.nan)
        if name.startswith("expert.") and int(name.split(".")[1]) not in used
        else weight
        for name, weight in ranker.weights.items()
    }
    request = ParsedRequest.from_message(
        RankRequest.model_validate(request_body | {"tasks": ["like"], "explain": True}), {}
    )
    clean, dirty = ranked(ranker, request), ranked(dataclasses.replace(ranker, weights=poisoned), request)
    assert dirty.experts_run == used
    np.testing.assert_array_equal(dirty.scores, clean.scores)


def test_ids_may_be_integers_where_the_log_has_text(client: TestClient, request_body: dict[str, Any]) -> None:
    answer = rank(client, request_body | {"items": [{"id": 7}, {"id": "v1"}]})
    assert {item["id"] for item in answer["items"]} == {7, "v1"}


def test_the_default_model_the_named_one_and_its_version_are_the_same(
    client: TestClient, request_body: dict[str, Any]
) -> None:
    answers = [
        rank(client, request_body, path)
        for path in ("/v1/rank", "/v1/models/feed/rank", "/v1/models/feed/versions/1/rank")
    ]
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0]["model"], answers[0]["version"], answers[0]["degraded"]) == ("feed", "1", False)


def test_reading_all_validation_rows_of_the_log_in_one_request_scores_as_the_library(
    client: TestClient, ranker: FrozenRanker, logs: Path, request_body: dict[str, Any]
) -> None:
    reader = LogReader(logs / "log" / "date=2026-01-09", ranker.schema, dict(ranker.tables), labels=False)
    rows = next(iter(reader.scan())).rows
    items = dict.fromkeys(rows["item_id"].to_pylist())
    body = request_body | {"items": [{"id": item} for item in items]}
    expected = ranker.score(candidates(body))
    got = {item["id"]: item["scores"] for item in rank(client, body)["items"]}
    for row, item in enumerate(items):
        for task in expected.column_names:
            assert got[item][task] == pytest.approx(expected[task][row].as_py(), abs=TOLERANCE)
