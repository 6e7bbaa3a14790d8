"""Metrics: names, values, and the exposition format."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.support.metrics import metrics_of, samples


@pytest.fixture
def client(repository: Path) -> Iterator[TestClient]:
    """Client of an app that receives no other requests."""
    with TestClient(create_app(Settings(repository=repository)), raise_server_exceptions=False) as client:
        yield client


def test_exposition_has_all_families_from_the_start(client: TestClient) -> None:
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    documented = text_string_to_metric_families(Metrics().exposition().decode())  # test_operations_guide compares these
    types = {family.name: family.type for family in documented if family.name.startswith("ranker_")}
    assert len(types) >= 30
    assert {name: family.type for name, family in families.items() if name.startswith("ranker_")} == types
    assert all(family.documentation.endswith(".") for family in families.values())
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= families.keys()


def test_ranked_request_is_counted_in_every_metric(client: TestClient, request_body: dict[str, Any]) -> None:
    request_body["items"] += [{"id": "never"}]
    assert client.post("/v1/rank", json=request_body).status_code == 200
    values = metrics_of(client)
    assert values["ranker_requests_total,model=feed,status=200"] == 1
    assert values["ranker_request_seconds_count"] == 1
    for stage in ("parse", "look-up", "queue", "forward", "write"):
        assert values[f"ranker_stage_seconds_count,stage={stage}"] == 1
        assert values[f"ranker_stage_seconds_bucket,le=+Inf,stage={stage}"] == 1
    assert values["ranker_rows_scored_total,model=feed,version=1"] == 13
    assert values["ranker_batch_rows_sum"] == 13
    assert values["ranker_missing_features_total,model=feed"] > 0
    assert values["ranker_unseen_ids_total,entity=item,model=feed"] == 1
    assert values["ranker_unseen_ids_total,entity=user,model=feed"] == 0
    assert values["ranker_score_count,model=feed,task=click"] == 13
    assert values["ranker_requests_in_flight"] == values["ranker_queue_rows"] == 0
    assert values["ranker_model_info,model=feed,role=current,version=1"] == 1
    assert values["ranker_model_load_seconds,model=feed"] > 0
    assert values["ranker_experts,model=feed"] >= 1


def test_unseen_ids_are_counted_per_candidate(client: TestClient, request_body: dict[str, Any]) -> None:
    client.post("/v1/rank", json=request_body | {"user": {"id": "nobody"}})
    client.post("/v1/rank", json=request_body | {"user": {}})
    unseen_items = [{"id": f"never-{i}"} for i in range(5)] + [{"id": 7}]
    client.post("/v1/rank", json=request_body | {"items": [*request_body["items"], *unseen_items]})
    values = metrics_of(client)
    assert values["ranker_unseen_ids_total,entity=user,model=feed"] == 12, "an absent user id is not an unseen one"
    assert values["ranker_unseen_ids_total,entity=item,model=feed"] == 6
    assert values["ranker_rows_scored_total,model=feed,version=1"] == 42


def test_score_histogram_contains_the_returned_score(client: TestClient, request_body: dict[str, Any]) -> None:
    request_body |= {"tasks": ["click"], "top_n": 1}
    request_body["items"] = request_body["items"][:1]
    score = client.post("/v1/rank", json=request_body).json()["items"][0]["scores"]["click"]
    values = metrics_of(client)
    assert values["ranker_score_sum,model=feed,task=click"] == pytest.approx(score)
    assert values["ranker_score_bucket,le=1.0,model=feed,task=click"] == 1
    assert values["ranker_score_bucket,le=0.0,model=feed,task=click"] == 0


def test_rejected_requests_are_counted_by_status_and_known_model(
    client: TestClient, request_body: dict[str, Any]
) -> None:
    client.post("/v1/rank", json={"items": 3})
    client.post("/v1/models/nope/rank", json={"items": []})
    client.post("/v1/rank", json=request_body | {"deadline_ms": 0.001})
    values = metrics_of(client)
    assert values["ranker_requests_total,model=feed,status=422"] == 1
    assert values["ranker_requests_total,model=,status=404"] == 1
    assert values["ranker_requests_total,model=feed,status=504"] == 1
    assert values["ranker_rejections_total,reason=deadline"] == 1
    assert values["ranker_rejections_total,reason=queue_full"] == 0
    assert values["ranker_request_seconds_count"] == 3
    assert values["ranker_rows_scored_total,model=feed,version=1"] == 0
    assert values["ranker_requests_in_flight"] == 0


def test_requests_other_than_ranking_are_not_counted(client: TestClient) -> None:
    client.get("/v2/health/live")
    client.get("/nowhere")
    assert metrics_of(client)["ranker_request_seconds_count"] == 0


def test_two_apps_in_one_process_have_separate_metrics(client: TestClient, repository: Path) -> None:
    client.post("/v1/rank", json={"items": []})
    with TestClient(create_app(Settings(repository=repository))) as other:
        assert metrics_of(other)["ranker_request_seconds_count"] == 0


def test_model_info_of_an_unloaded_version_is_0() -> None:
    metrics = Metrics()
    metrics.record_loaded("feed", "1", "canary", load_seconds=0.5, num_experts=3)
    assert samples(metrics.exposition().decode())["ranker_model_info,model=feed,role=canary,version=1"] == 1
    metrics.record_unloaded("feed", "1", "canary")
    assert samples(metrics.exposition().decode())["ranker_model_info,model=feed,role=canary,version=1"] == 0


def test_promtool_accepts_the_exposition(client: TestClient, request_body: dict[str, Any]) -> None:
    if shutil.which("promtool") is None:
        message = "promtool is not installed (Debian: prometheus)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    client.post("/v1/rank", json=request_body)
    text = client.get("/metrics").content
    result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
