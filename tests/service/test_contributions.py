"""Contributions of features in responses: they add up to the logits of the scores, in every format."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from pipelines.config.config import load_config
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from pipelines.jobs.train import train
from ranking.frozen.contributions import FLOOR, ContributionsGraph
from ranking.frozen.ranker import FrozenRanker
from service.app import create_app
from service.engine import explainer
from service.engine.explainer import MAX_WAITING
from service.http.media_types import ARROW
from service.settings import Settings
from tests.conftest import SMALL, Once
from tests.support.metrics import metrics_of
from tests.support.rank_request import rank
from tests.support.waiting import wait_until

ITEMS = [{"id": "v1"}, {"id": "v2", "features": {"price": 3.2}}, {"id": "new"}]
REQUEST: dict[str, Any] = {
    "user": {"id": "u7"},
    "context": {"surface": "home", "hour": 9},
    "items": ITEMS,
    "explain": True,
}


def test_contributions_add_up_to_the_logits_of_the_scores(client: TestClient, ranker: FrozenRanker) -> None:
    answer = rank(client, REQUEST)
    baseline, method = answer["explain"]["baseline"], answer["explain"]["method"]
    assert list(baseline) == ranker.schema.task_names
    assert method["name"] == "integrated_gradients"
    assert method["items"] == 3
    assert method["error"] <= 0.01
    for item in answer["items"]:
        for task in ranker.schema.tasks:
            contributions, score = item["contributions"][task.name], item["scores"][task.name]
            assert set(contributions) == {feature.name for feature in ranker.schema.features}
            logit = math.log(score / (1 - score)) if task.kind == "binary" else score
            limit = 0.01 * max(abs(logit - baseline[task.name]), FLOOR)
            assert baseline[task.name] + sum(contributions.values()) == pytest.approx(logit, abs=limit)


def test_contributions_equal_those_of_the_library(client: TestClient, ranker: FrozenRanker) -> None:
    rows = [{"user_id": "u7", "surface": "home", "hour": 9, "item_id": item} for item in ("v1", "v3")]
    names = {feature.column for feature in ranker.schema.inputs if feature.owner == "context"}
    context = {name: value for name, value in {"surface": "home", "hour": 9}.items() if name in names}
    expected = ranker.contributions(pa.Table.from_pylist(rows), ["like"])
    answer = rank(client, REQUEST, context=context, items=[{"id": "v1"}, {"id": "v3"}], tasks=["like"])
    for item in answer["items"]:
        row = ["v1", "v3"].index(item["id"])
        assert list(item["contributions"]["like"]) == expected.features
        assert list(item["contributions"]["like"].values()) == pytest.approx(expected.values[row, 0], abs=1e-5)


def test_contributions_are_equal_in_rows_columns_and_arrow(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explainer, "MAX_EXPLAINED", 2)
    rows = rank(client, REQUEST)
    assert rows["explain"]["method"]["items"] == 2
    first, second, third = rows["items"]
    assert "contributions" not in third
    columns = rank(client, REQUEST, layout="columns")["items"]["contributions"]
    stream = client.post("/v1/rank", json=REQUEST, headers={"Accept": ARROW})
    table = pa.ipc.open_stream(stream.content).read_all()
    arrow = table["contributions"].to_pylist()
    assert arrow[2] is None
    for position, item in enumerate((first, second)):
        for task, values in item["contributions"].items():
            assert {name: column[position] for name, column in columns[task].items()} == values
            assert arrow[position][task] == pytest.approx(values, abs=1e-6)
    assert {len(column) for task in columns.values() for column in task.values()} == {2}


def test_response_has_no_contributions_by_default(client: TestClient) -> None:
    for layout in ("rows", "columns"):
        answer = rank(client, REQUEST, explain=False, layout=layout)
        assert "explain" not in answer
        assert "contributions" not in str(answer)


def explanations(client: TestClient, **changes: Any) -> list[dict[str, Any]]:
    """Return the explanation of a request in each format, and check that no item has contributions."""
    answers = [rank(client, REQUEST, **changes), rank(client, REQUEST, layout="columns", **changes)]
    stream = client.post("/v1/rank", json=REQUEST | changes, headers={"Accept": ARROW})
    table = pa.ipc.open_stream(stream.content).read_all()
    assert "contributions" not in str([answer["items"] for answer in answers]) + str(table.column_names)
    return [*(answer["explain"] for answer in answers), json.loads(table.schema.metadata[b"response"])["explain"]]


def test_explanation_without_candidates_has_a_reason_instead_of_contributions(client: TestClient) -> None:
    assert "no_contributions" not in rank(client, REQUEST)["explain"]
    for explain in explanations(client, items=[]):
        assert explain["no_contributions"] == "no_items"
        assert not {"baseline", "method"} & explain.keys()


def test_explanation_of_a_per_example_gate_has_a_reason_instead_of_contributions(
    logs: Path, once: Once, tmp_path: Path
) -> None:
    config = load_config(logs / "ranker.toml", [*SMALL, "model.gate.per_example=true"])
    run = once("per example run", lambda folder: train(config, folder))
    bundle = once("per example", lambda folder: freeze_run(run, folder))
    publish(bundle, tmp_path)
    change_release(tmp_path, "feed", {"version": 1})
    with TestClient(create_app(Settings(repository=tmp_path, threads=1))) as client:
        for explain in explanations(client):
            assert explain["no_contributions"] == "per_example_gate"
            assert explain["experts_run"]
            assert not {"baseline", "method"} & explain.keys()


@pytest.fixture
def release() -> threading.Event:
    """Lets the explanation in progress of ``blocked`` end."""
    return threading.Event()


@pytest.fixture
def blocked(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> Iterator[list[dict[str, Any]]]:
    """An explanation in progress, which ends with the test; its response is added to the list then."""
    started = threading.Event()
    compute = ContributionsGraph.__call__

    def wait(self: ContributionsGraph, *arguments: Any) -> Any:
        started.set()
        assert release.wait(30)
        return compute(self, *arguments)

    monkeypatch.setattr(ContributionsGraph, "__call__", wait)
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(rank(client, REQUEST)))
    thread.start()
    assert started.wait(30)
    yield answers
    release.set()
    thread.join()
    assert np.isfinite(answers[0]["explain"]["method"]["error"])


def test_explanation_that_starts_after_the_deadline_is_504(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explainer, "time", SimpleNamespace(monotonic=lambda: math.inf))
    response = client.post("/v1/rank", json=REQUEST | {"deadline_ms": 60_000})
    assert response.status_code == 504
    assert "before the explanation started" in response.json()["detail"]


def test_explanation_whose_deadline_passes_while_it_waits_is_504_at_once(
    client: TestClient, blocked: list[dict[str, Any]]
) -> None:
    response = client.post("/v1/rank", json=REQUEST | {"deadline_ms": 300})
    assert response.status_code == 504
    assert "before the explanation started" in response.json()["detail"]
    assert not blocked  # the computation that it waited for is still in progress
    assert metrics_of(client)["ranker_queue_explanations"] == 1


def test_explanations_beyond_the_limit_are_429_and_counted(
    client: TestClient, blocked: list[dict[str, Any]], release: threading.Event
) -> None:
    def count(reason: str) -> float:
        return metrics_of(client)[f"ranker_rejections_total,reason={reason}"]

    before = count("explain"), count("queue_full")
    accepted = MAX_WAITING - 1  # the computation in progress has one place
    with ThreadPoolExecutor(2 * MAX_WAITING) as threads:
        requests = [threads.submit(client.post, "/v1/rank", json=REQUEST) for _ in range(2 * MAX_WAITING)]
        wait_until(lambda: sum(request.done() for request in requests) == len(requests) - accepted)
        assert metrics_of(client)["ranker_queue_explanations"] == MAX_WAITING
        assert rank(client, REQUEST, explain=False)["items"]
        release.set()
    responses = [request.result() for request in requests]
    rejected = [response for response in responses if response.status_code == 429]
    assert [response.status_code for response in responses].count(200) == accepted
    assert len(rejected) == len(requests) - accepted
    assert {response.headers["retry-after"] for response in rejected} == {"1"}
    assert {response.headers["content-type"] for response in rejected} == {"application/problem+json"}
    assert (count("explain"), count("queue_full")) == (before[0] + len(rejected), before[1])
    wait_until(lambda: metrics_of(client)["ranker_queue_explanations"] == 0)


def test_other_requests_are_ranked_during_an_explanation(client: TestClient, blocked: list[dict[str, Any]]) -> None:
    assert rank(client, REQUEST, explain=False)["items"]
    assert not blocked
