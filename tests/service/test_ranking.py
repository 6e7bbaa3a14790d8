"""``POST /v1/rank`` agrees with the library, for gates that select experts per task and per example."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

import ranking
from pipelines.data.reader import LogReader
from pipelines.jobs.publish import publish
from pipelines.jobs.score import score_log
from ranking import FrozenRanker
from ranking.encoding.torch_batch import TorchBatch
from service.app import create_app
from service.engine.errors import ScoringError
from service.engine.response import objective_weights
from service.settings import Settings
from tests.support.direct_ranking import parse, rank_alone
from tests.support.one_model import weights_of, with_weights
from tests.support.rank_request import rank

PER_TASK_GATE = "dselect_k all experts"
PER_EXAMPLE_GATES = ["dselect_k per example budget", "attentive"]
"""A gate that selects few of the experts that it keeps, and one that is frozen to a gate of another kind."""
TOLERANCES = {PER_TASK_GATE: 1e-5} | dict.fromkeys(PER_EXAMPLE_GATES, 1e-6)
"""Maximum absolute difference between scores over HTTP and of the library, by gate."""


@dataclasses.dataclass(frozen=True)
class ServedGate:
    """A served bundle of one gate.

    Attributes:
        gate: name of the gate.
        client: client of the service.
        ranker: the same bundle, loaded by the library.
    """

    gate: str
    client: TestClient
    ranker: FrozenRanker

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.gate]

    def assert_scores_match(self, response: dict[str, Any], ids: list[str], expected: pa.Table) -> None:
        items = {item["id"]: item for item in response["items"]}
        for row, item_id in enumerate(ids):
            assert items[item_id]["score"] == pytest.approx(expected["score"][row].as_py(), abs=100 * self.tolerance)
            for task in self.ranker.schema.task_names:
                assert items[item_id]["scores"][task] == pytest.approx(expected[task][row].as_py(), abs=self.tolerance)


@pytest.fixture(scope="module", params=[PER_TASK_GATE, *PER_EXAMPLE_GATES])
def served(
    bundle_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServedGate]:
    repository = tmp_path_factory.mktemp("gate") / "repository"
    publish(bundle_of(request.param), repository, "feed")
    app = create_app(Settings(repository=repository, max_candidates=200))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield ServedGate(request.param, client, ranking.load(repository / "feed" / "1"))


@pytest.fixture
def many_candidates(request_body: dict[str, Any]) -> dict[str, Any]:
    """A request with enough candidates that per-example gates select different experts."""
    return request_body | {"items": [{"id": f"v{i}"} for i in range(60)]}


def to_table(body: dict[str, Any]) -> pa.Table:
    """The request as a table for the library."""
    count = len(body["items"])
    columns: dict[str, list[Any]] = {
        "user_id": [body["user"]["id"]] * count,
        "item_id": [item["id"] for item in body["items"]],
    }
    columns |= {name: [value] * count for name, value in (body["user"]["features"] | body["context"]).items()}
    return pa.table(columns)


def test_rank_scores_equal_those_of_the_library(served: ServedGate, many_candidates: dict[str, Any]) -> None:
    response = rank(served.client, many_candidates)
    ids = [item["id"] for item in many_candidates["items"]]
    served.assert_scores_match(response, ids, served.ranker.score(to_table(many_candidates)))


def test_rank_scores_equal_those_of_ranker_score_on_log_rows(served: ServedGate, logs: Path, tmp_path: Path) -> None:
    rows = pq.read_table(logs / "log" / "date=2026-01-10" / "part-0.parquet").slice(0, 60)
    pq.write_table(rows, tmp_path / "rows.parquet")
    score_log(served.ranker, tmp_path / "rows.parquet", tmp_path / "scores.parquet")
    offline = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    for row, expected in zip(rows.to_pylist(), offline, strict=True):
        body = {
            "time": row["time"].astimezone().isoformat(),  # the log has local times
            "user": {"id": row["user_id"]},
            "context": {"surface": row["surface"], "hour": row["hour"]},
            "items": [{"id": row["item_id"]}],
        }
        (item,) = rank(served.client, body)["items"]
        for task, score in item["scores"].items():
            assert score == pytest.approx(expected[task], abs=served.tolerance)


def test_rank_with_a_subset_of_tasks_has_the_same_scores(served: ServedGate, many_candidates: dict[str, Any]) -> None:
    all_tasks = {item["id"]: item["scores"] for item in rank(served.client, many_candidates)["items"]}
    for item in rank(served.client, many_candidates | {"tasks": ["watch_time", "like"]})["items"]:
        assert list(item["scores"]) == ["watch_time", "like"]
        for task, score in item["scores"].items():
            assert score == pytest.approx(all_tasks[item["id"]][task], abs=served.tolerance)


@pytest.mark.parametrize("items", [[], {"id": [], "features": {}}], ids=["rows", "columns"])
def test_rank_without_candidates_runs_no_experts(served: ServedGate, request_body: dict[str, Any], items: Any) -> None:
    response = rank(served.client, request_body | {"items": items, "explain": True})
    assert response["items"] == []
    assert response["explain"]["experts_run"] == []


@pytest.mark.parametrize("count", [1, 2, 60])
@pytest.mark.parametrize("tasks", [["like"], ["click", "watch_time"]])
def test_explain_names_the_experts_that_the_gate_selected(
    served: ServedGate, many_candidates: dict[str, Any], count: int, tasks: list[str]
) -> None:
    ranker = served.ranker
    body = many_candidates | {"items": many_candidates["items"][:count], "tasks": tasks, "explain": True}
    explain = rank(served.client, body)["explain"]
    inputs = ranker.encoder.encode(ranker.complete(to_table(body)))
    positions = [ranker.schema.task_names.index(task) for task in tasks]
    routing = ranker.graph.routing(TorchBatch.from_numpy(inputs))  # [tasks, experts] or [candidates, tasks, experts]
    selected = (routing[..., positions, :] > 0).flatten(0, -2).any(0)
    assert explain["experts_run"] == selected.nonzero().flatten().tolist()
    assert explain["experts_total"] == ranker.selection.num_experts
    assert list(explain["tasks"]) == tasks


def test_metadata_is_served(served: ServedGate) -> None:
    response = served.client.get("/v2/models/feed")
    assert response.status_code == 200, response.text


def test_rank_with_all_items_of_a_day_equals_the_library(
    client: TestClient, ranker: FrozenRanker, logs: Path, request_body: dict[str, Any]
) -> None:
    reader = LogReader(logs / "log" / "date=2026-01-09", ranker.schema.logged, dict(ranker.tables), labels=False)
    rows = next(iter(reader.scan())).rows
    ids = list(dict.fromkeys(rows["item_id"].to_pylist()))
    body = request_body | {"items": [{"id": item_id} for item_id in ids]}
    expected = ranker.score(to_table(body))
    ServedGate(PER_TASK_GATE, client, ranker).assert_scores_match(rank(client, body), ids, expected)


def test_explain_gives_the_weights_of_a_per_task_gate(
    client: TestClient, request_body: dict[str, Any], ranker: FrozenRanker
) -> None:
    explain = rank(client, request_body | {"tasks": ["like"], "explain": True})["explain"]
    weights = ranker.selection.tasks["like"]
    assert explain["experts_run"] == sorted(weights)
    assert explain["experts_total"] == ranker.selection.num_experts
    assert explain["tasks"] == {"like": {str(expert): weight for expert, weight in weights.items()}}


def test_rank_sorts_by_score_and_keeps_the_order_of_ties(client: TestClient, request_body: dict[str, Any]) -> None:
    scores = [item["score"] for item in rank(client, request_body)["items"]]
    assert scores == sorted(scores, reverse=True)
    unknown = [{"id": f"never-seen-{i}"} for i in range(5)]
    response = rank(client, request_body | {"items": unknown})
    assert [item["id"] for item in response["items"]] == [item["id"] for item in unknown]


def test_rank_rows_and_columns_have_the_same_response(client: TestClient, request_body: dict[str, Any]) -> None:
    rows = [{"id": "v1", "features": {"price": 3.5, "topics": ["topic0_3"]}}, {"id": "v2"}]
    columns = {"id": ["v1", "v2"], "features": {"price": [3.5, None], "topics": [["topic0_3"], None]}}
    assert rank(client, request_body | {"items": rows}) == rank(client, request_body | {"items": columns})


def test_rank_null_feature_equals_an_absent_one(client: TestClient, request_body: dict[str, Any]) -> None:
    absent = rank(client, request_body | {"items": [{"id": "v1"}]})
    null = rank(client, request_body | {"items": [{"id": "v1", "features": {"price": None, "topics": None}}]})
    assert absent == null


def test_rank_features_of_the_request_override_the_tables(client: TestClient, request_body: dict[str, Any]) -> None:
    (from_table,) = rank(client, request_body | {"items": [{"id": "v1"}]})["items"]
    features = {"price": 900.0, "quality": -4}
    (from_request,) = rank(client, request_body | {"items": [{"id": "v1", "features": features}]})["items"]
    assert from_table["scores"] != from_request["scores"]


def test_rank_unknown_features_are_listed_as_missing(client: TestClient, request_body: dict[str, Any]) -> None:
    items = [{"id": "v1"}, {"id": "never-seen", "features": {"price": 2.0}}]
    response = rank(client, {"user": {"id": "u3"}, "context": {"hour": 9}, "items": items})
    missing = {item["id"]: item["missing"] for item in response["items"]}
    assert missing["never-seen"] == ["items.id", "category", "author", "quality", "topics", "surface"]
    assert "surface" in missing["v1"]
    assert "category" not in missing["v1"]


def test_rank_accepts_an_unknown_user_and_no_user(client: TestClient, request_body: dict[str, Any]) -> None:
    unknown = rank(client, request_body | {"user": {"id": "nobody"}})
    assert "country" in unknown["items"][0]["missing"]
    assert "user.id" in unknown["items"][0]["missing"]
    absent = rank(client, request_body | {"user": {}})
    assert "user.id" in absent["items"][0]["missing"]
    known = rank(client, request_body)
    assert not {"user.id", "items.id"}.intersection(known["items"][0]["missing"])


def test_rank_score_is_the_weighted_sum_of_the_objective(
    client: TestClient, request_body: dict[str, Any], ranker: FrozenRanker
) -> None:
    for objective in (None, {"click": 2.0, "dislike": -30.0}):
        weights = objective or ranker.objective
        for item in rank(client, request_body | ({"objective": objective} if objective else {}))["items"]:
            assert item["score"] == pytest.approx(sum(w * item["scores"][t] for t, w in weights.items()), abs=1e-5)


def test_rank_default_objective_is_limited_to_the_requested_tasks(
    client: TestClient, request_body: dict[str, Any]
) -> None:
    for item in rank(client, request_body | {"tasks": ["like"]})["items"]:
        assert item["score"] == pytest.approx(5.0 * item["scores"]["like"])
    for item in rank(client, request_body | {"tasks": ["rating", "watch_time"]})["items"]:
        assert item["score"] == pytest.approx(item["scores"]["rating"])


def test_sort_candidates_score_that_is_not_finite_raises_scoring_error(
    ranker: FrozenRanker, request_body: dict[str, Any]
) -> None:
    poisoned = {n: np.full_like(w, np.nan) if n.startswith("tower.") else w for n, w in weights_of(ranker).items()}
    request = parse(request_body)
    with pytest.raises(ScoringError, match="task 'click' of candidate 0 has the score nan, which is not finite"):
        rank_alone(with_weights(ranker, poisoned), request)


def test_objective_weights_of_tasks_that_the_bundle_weights_with_0_default_to_the_first(ranker: FrozenRanker) -> None:
    unweighted = dataclasses.replace(ranker, objective={"click": 1.0, "like": 0.0, "rating": 0.0})
    assert objective_weights(unweighted, unweighted.tasks(["like", "rating"]), None).tolist() == [1.0, 0.0]
    assert objective_weights(unweighted, unweighted.tasks(["like", "click"]), None).tolist() == [0.0, 1.0]


def test_rank_top_n_returns_the_best(client: TestClient, request_body: dict[str, Any]) -> None:
    items = rank(client, request_body)["items"]
    assert rank(client, request_body | {"top_n": 3})["items"] == items[:3]
    for more in (300, 10**400):
        assert rank(client, request_body | {"top_n": more})["items"] == items


def test_experts_that_no_requested_task_selected_do_not_run(ranker: FrozenRanker, request_body: dict[str, Any]) -> None:
    used = ranker.selection.experts_for(["like"])
    assert used != ranker.selection.experts_used, "the fixture's tasks share all experts: choose another seed"
    unused = {name for name in weights_of(ranker) if name.startswith("expert.") and int(name.split(".")[1]) not in used}
    poisoned_weights = {n: np.full_like(w, np.nan) if n in unused else w for n, w in weights_of(ranker).items()}
    request = parse(request_body | {"tasks": ["like"], "explain": True})
    expected = rank_alone(ranker, request)
    result = rank_alone(with_weights(ranker, poisoned_weights), request)
    assert result.experts_run == used
    np.testing.assert_array_equal(result.scores, expected.scores)


def test_rank_accepts_integer_ids_for_a_text_column(client: TestClient, request_body: dict[str, Any]) -> None:
    response = rank(client, request_body | {"items": [{"id": 7}, {"id": "v1"}]})
    assert {item["id"] for item in response["items"]} == {7, "v1"}


@pytest.mark.parametrize("id_", [2**63 - 1, -(2**63)])
def test_rank_ids_of_64_bits_are_returned_unchanged(client: TestClient, id_: int) -> None:
    for layout, ids_of in (("rows", lambda items: [i["id"] for i in items]), ("columns", lambda items: items["id"])):
        items = rank(client, {"items": {"id": [id_]}, "layout": layout})["items"]
        assert ids_of(items) == [id_]


def test_rank_by_default_by_model_and_by_version_have_the_same_response(
    client: TestClient, request_body: dict[str, Any]
) -> None:
    paths = ("/v1/rank", "/v1/models/feed/rank", "/v1/models/feed/versions/1/rank")
    default, by_model, by_version = (rank(client, request_body, path) for path in paths)
    assert default == by_model == by_version
    assert (default["model"], default["version"], default["degraded"]) == ("feed", "1", False)
