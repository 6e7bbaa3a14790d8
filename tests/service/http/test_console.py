"""What the console shows of models, versions, reports and the loop, and requests that people try out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

import ranking
from ranking.artifacts import bundle
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.object_store import ObjectLocation
from service.app import create_app
from service.http.auth.keys import create_key
from service.http.console import describe_store, name_of
from service.settings import LogTarget, Settings
from tests.support.disclosure import internal_details
from tests.support.hanging_filesystem import hanging_filesystem
from tests.support.metrics import metrics_of

API = "/console/api"
BODY: dict[str, Any] = {"user": {"id": "u3"}, "items": [{"id": f"v{i}"} for i in range(9)]}


@contextmanager
def service_of(repository: Path, **settings: Any) -> Iterator[TestClient]:
    app = create_app(Settings(repository=repository, threads=1, poll_seconds=3600, **settings))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def console(repo: Path) -> Iterator[TestClient]:
    """A client of a service of the writable repository."""
    with service_of(repo) as client:
        yield client


def versions_of(client: TestClient, model: str = "feed") -> dict[str, Any]:
    """Map each version of a model to its entry in the list of models."""
    (entry,) = (model_ for model_ in client.get(f"{API}/models").json()["models"] if model_["name"] == model)
    return {version["version"]: version for version in entry["versions"]}


def test_models_have_the_release_and_the_headline_metrics_of_each_version(console: TestClient, repo: Path) -> None:
    document = console.get(f"{API}/models").json()
    assert document["service"]["name"] == "dselect-ranker"
    (model,) = document["models"]
    assert (model["name"], model["default"], model["ready"]) == ("feed", True, True)
    assert model["release"] == json.loads((repo / "feed" / "current.json").read_text())
    one, two = model["versions"]
    assert (one["version"], one["state"], one["roles"]) == ("1", "READY", ["current"])
    assert (two["version"], two["state"], two["roles"]) == ("2", "UNAVAILABLE", [])
    for version in (one, two):
        evaluation = json.loads((repo / "feed" / version["version"] / "evaluation.json").read_text())
        assert version["evaluation"]["rows"] == evaluation["rows"]
        assert version["evaluation"]["tasks"].keys() == evaluation["tasks"].keys()
        for task, quality in version["evaluation"]["tasks"].items():
            metrics = evaluation["tasks"][task]
            assert quality["metric"] == ("auc" if "auc" in metrics else "rmse")
            assert quality["value"] == metrics[quality["metric"]]
            if "auc" in metrics:
                curve = evaluation["calibration_curves"][task]
                mean = sum(point["predicted"] * point["rows"] for point in curve) / metrics["rows"]
                assert quality["mean_score"] == pytest.approx(mean)
            else:
                assert quality["mean_score"] is None
        assert version["evaluation"]["verdict"] == []  # the bundle has no baselines
        assert datetime.fromisoformat(version["published"]) <= datetime.now(UTC)
        assert version["weight"] is None


def test_models_name_the_canary_with_its_weight_and_the_shadow(repo: Path) -> None:
    release = {"version": 1, "canary": {"version": 2, "weight": 0.25}}
    (repo / "feed" / "current.json").write_text(json.dumps(release))
    with service_of(repo) as client:
        versions = versions_of(client)
        assert (versions["2"]["roles"], versions["2"]["weight"]) == (["canary"], 0.25)
        assert (versions["1"]["roles"], versions["1"]["weight"]) == (["current"], None)


def test_version_is_described_as_its_bundle_is(console: TestClient, repo: Path) -> None:
    ranker = ranking.load(repo / "feed" / "1")
    version = console.get(f"{API}/models/feed/versions/1").json()
    assert [task["name"] for task in version["tasks"]] == list(ranker.schema.task_names)
    requested = {feature["name"] for feature in version["inputs"] if not feature["counter"]}
    assert requested == {feature.column for feature in ranker.schema.inputs} - {"user_id", "item_id"} - {
        feature["name"] for feature in version["inputs"] if feature["counter"]
    }
    assert {feature["name"] for feature in version["inputs"] if feature["counter"]} == {
        feature.column for feature in ranker.schema.counter_features
    }
    assert version["selection"]["experts_total"] == ranker.selection.num_experts
    assert version["selection"]["experts_used"] == ranker.selection.experts_used
    weights = {task: {str(e): w for e, w in experts.items()} for task, experts in ranker.selection.tasks.items()}
    assert version["selection"]["tasks"] == weights
    assert version["selection"]["gate"] == "dselect_k"
    assert version["evaluation"] == json.loads((repo / "feed" / "1" / "evaluation.json").read_text())
    assert version["backend"] == "onnxruntime"
    assert console.get(f"{API}/models/feed/versions/2").json()["backend"] is None


@pytest.mark.parametrize(
    "path", ["feed/versions/9", "feed/versions/01", "feed/versions/-1", "feed/versions/x", "no/versions/1"]
)
@pytest.mark.parametrize("suffix", ["", "/report"])
def test_unknown_version_is_404(client: TestClient, path: str, suffix: str) -> None:
    response = client.get(f"{API}/models/{path}{suffix}")
    assert response.status_code == 404
    assert "has no" in response.json()["detail"]


def test_report_is_shown_without_scripts_and_missing_ones_are_404(repo: Path) -> None:
    (repo / "feed" / "2" / bundle.REPORT).write_text("<h1>Report</h1><script>alert(1)</script>")
    with service_of(repo) as client:
        assert not versions_of(client)["1"]["report"]
        missing = client.get(f"{API}/models/feed/versions/1/report")
        assert (missing.status_code, "run 'ranker report'" in missing.json()["detail"]) == (404, True)
        assert versions_of(client)["2"]["report"]
        report = client.get(f"{API}/models/feed/versions/2/report")
        assert report.text.startswith("<h1>Report</h1>")
        assert report.headers["content-type"] == "text/html; charset=utf-8"
        policy = report.headers["content-security-policy"]
        assert "sandbox" in policy
        assert "default-src 'none'" in policy
        assert "script-src" not in policy


@pytest.mark.parametrize("content", ["{", "[]", '{"tasks": []}', '{"rows": 1, "tasks": {"click": {"auc": NaN}}}', "{}"])
def test_unreadable_evaluation_is_a_reason_and_hides_no_other_version(
    console: TestClient, repo: Path, content: str
) -> None:
    (repo / "feed" / "2" / bundle.EVALUATION).write_text(content)
    versions = versions_of(console)
    assert versions["1"]["evaluation"] is not None
    assert versions["2"]["evaluation"] is None
    assert "evaluation" in versions["2"]["reason"] or "feed/2" in versions["2"]["reason"]
    assert str(repo) not in json.dumps(versions)
    response = console.get(f"{API}/models/feed/versions/2")
    assert response.status_code == 409
    assert str(repo) not in response.text


def test_evaluation_without_headline_metrics_is_a_reason_and_hides_no_other_version(
    console: TestClient, repo: Path
) -> None:
    (repo / "feed" / "2" / bundle.EVALUATION).write_text('{"tasks": {}}')
    versions = versions_of(console)
    assert versions["1"]["evaluation"] is not None
    assert versions["2"]["evaluation"] is None
    assert "feed/2" in versions["2"]["reason"]


def test_models_have_the_verdict_on_their_baselines(console: TestClient, repo: Path) -> None:
    file = repo / "feed" / "2" / bundle.EVALUATION
    auc = {"model": 0.7, "baseline": 0.8, "difference": -0.1, "interval": [-0.2, -0.05], "better": "baseline"}
    baselines = {"tasks": {"click": {"popularity": {"auc": auc}}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"baselines": baselines}))
    (line,) = versions_of(console)["2"]["evaluation"]["verdict"]
    assert line.startswith("click: the model does not beat popularity: AUC 0.7000 against 0.8000")


def test_unreadable_manifest_is_409_without_the_path_of_the_repository(console: TestClient, repo: Path) -> None:
    for content in ("{", "[]", "{}", '{"details": 1, "schema": 2}'):
        (repo / "feed" / "2" / "manifest.json").write_text(content)
        response = console.get(f"{API}/models/feed/versions/2")
        assert response.status_code == 409
        assert "feed/2" in response.json()["detail"]
        assert str(repo) not in response.text
        assert not internal_details(response.text)


def test_version_without_an_evaluation_has_none(console: TestClient, repo: Path) -> None:
    (repo / "feed" / "2" / bundle.EVALUATION).unlink()
    assert versions_of(console)["2"]["evaluation"] is None
    assert console.get(f"{API}/models/feed/versions/2").json()["evaluation"] is None


def test_versions_that_appear_and_disappear_are_followed(console: TestClient, repo: Path) -> None:
    shutil.copytree(repo / "feed" / "2", repo / "feed" / "3")
    assert list(versions_of(console)) == ["1", "2", "3"]
    shutil.rmtree(repo / "feed" / "3")
    assert list(versions_of(console)) == ["1", "2"]


def test_repository_that_does_not_respond_is_504(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.http.console.REPOSITORY_SECONDS", 0.5)
    with service_of(repo) as client, hanging_filesystem(repo / "feed"):
        response = client.get(f"{API}/models")
        assert response.status_code == 504
        assert client.post("/v1/rank", json=BODY).status_code == 200


def test_loop_without_its_parts_is_empty(client: TestClient) -> None:
    loop = client.get(f"{API}/loop").json()
    assert (loop["served_log"], loop["feedback"], loop["feature_store"]) == (None, None, None)
    assert loop["counters"] == {"feed": {"as_of": client.post("/v1/rank", json=BODY).json()["counters_as_of"]}}
    assert loop["limits"]["max_candidates"] == 200


def test_loop_names_its_parts_without_paths_and_passwords(repo: Path, tmp_path: Path) -> None:
    parts = {"served_log": tmp_path / "served", "served_share": 0.5, "feedback_dir": tmp_path / "clicks"}
    with service_of(repo, **parts) as client:
        response = client.get(f"{API}/loop")
        assert response.json()["served_log"] == {"target": "folder served", "share": 0.5}
        assert response.json()["feedback"] == {"target": "folder clicks"}
        assert str(tmp_path) not in response.text
    store = describe_store(Settings(repository=repo, store="redis://ranker:secret@store:6379/2"))
    assert store is not None
    assert store.address == "redis://store:6379/2"


def test_trial_is_answered_like_a_request_but_not_logged(repo: Path, tmp_path: Path) -> None:
    with service_of(repo, served_log=tmp_path / "served") as client:
        trial = client.post(f"{API}/models/feed/rank", json=BODY | {"explain": True, "request_id": "r-1"})
        assert trial.status_code == 200
        assert list((tmp_path / "served").rglob("*.parquet")) == []
        served = client.post("/v1/models/feed/rank", json=BODY | {"explain": True, "request_id": "r-1"})
        assert trial.json() == served.json()
        values = metrics_of(client)
        assert sum(value for name, value in values.items() if name.startswith("ranker_requests_total")) == 2
    (file,) = (tmp_path / "served").rglob("*.parquet")
    assert pq.read_table(file)["request_id"].to_pylist() == ["r-1"]


def test_trial_is_not_scored_by_the_shadow(repo: Path) -> None:
    (repo / "feed" / "current.json").write_text(json.dumps({"version": 1, "shadow": 2}))
    with service_of(repo) as client:
        assert client.post(f"{API}/models/feed/rank", json=BODY).status_code == 200
        shadowed = [n for n, v in metrics_of(client).items() if "shadow_requests" in n and v]
        assert shadowed == []


@pytest.mark.parametrize(("body", "status"), [({"items": 1}, 422), ({"items": [{"id": "a"}, {"id": "a"}]}, 422)])
def test_invalid_trial_is_rejected_like_a_request(client: TestClient, body: Any, status: int) -> None:
    trial, request = client.post(f"{API}/models/feed/rank", json=body), client.post("/v1/models/feed/rank", json=body)
    assert trial.status_code == request.status_code == status
    assert trial.json()["detail"] == request.json()["detail"]
    assert client.post(f"{API}/models/nope/rank", json=BODY).status_code == 404


@pytest.fixture
def with_keys(repository: Path, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Factory: scope → a client that sends a key with only that scope."""
    file = tmp_path / "keys.json"
    keys = {scope: create_key(file, scope, (scope,)) for scope in ("rank", "feedback", "read", "admin")}
    with service_of(repository, keys=file) as client:

        def status(scope: str) -> tuple[int, int]:
            headers = {"Authorization": f"Bearer {keys[scope]}"} if scope else {}
            shown = client.get(f"{API}/models", headers=headers).status_code
            return shown, client.post(f"{API}/models/feed/rank", json=BODY, headers=headers).status_code

        yield status


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("", (401, 401)), ("rank", (403, 200)), ("feedback", (403, 403)), ("read", (200, 403)), ("admin", (200, 403))],
)
def test_console_needs_scope_read_or_admin_and_trials_need_scope_rank(
    with_keys: Callable[[str], Any], scope: str, expected: tuple[int, int]
) -> None:
    assert with_keys(scope) == expected


def test_pages_need_no_key(repository: Path, tmp_path: Path) -> None:
    create_key(tmp_path / "keys.json", "any", ("rank",))
    with service_of(repository, keys=tmp_path / "keys.json") as client:
        assert client.get("/console/").status_code == 200
        assert client.get("/console/app.js").status_code == 200


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Path("/data/served"), "folder served"),
        (KafkaAddress("broker:9092", "served"), "topic served"),
        (ObjectLocation("s3://bucket/logs/served"), "object storage served"),
        (ObjectLocation("s3://bucket"), "object storage"),
    ],
)
def test_destination_of_a_log_is_named_without_its_host(target: LogTarget, name: str) -> None:
    assert name_of(target) == name
