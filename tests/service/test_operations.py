"""Health, metadata, request ids, start-up errors and imports of a service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipelines.jobs.publish import publish
from ranking import BundleError, FrozenRanker
from service.app import create_app
from service.settings import Settings


def test_health_of_a_service_with_a_loaded_model(client: TestClient) -> None:
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/feed/ready").json() == {"name": "feed", "version": "1", "ready": True}
    assert client.get("/v2/models/nope/ready").status_code == 404


def test_metadata_lists_inputs_outputs_and_backends(client: TestClient, ranker: FrozenRanker) -> None:
    metadata = client.get("/v2/models/feed").json()
    assert metadata["versions"] == ["1"]
    price = next(entry for entry in metadata["inputs"] if entry["name"] == "price")
    assert (price["kind"], price["owner"]) == ("numeric", "item")
    assert [output["name"] for output in metadata["outputs"]] == [*ranker.schema.task_names, "score"]
    assert metadata["experts_used"] == ranker.selection.experts_used
    assert metadata["backend"] == "onnxruntime"
    assert metadata["backends"] == ["onnxruntime", "cuda", "torch"]


def test_openapi_document_describes_requests_responses_and_errors(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/v1/rank"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/RankRequest")
    schemas = operation["responses"]["200"]["content"]["application/json"]["schema"]["oneOf"]
    assert [schema["$ref"].rpartition("/")[2] for schema in schemas] == ["RankResponse", "ColumnarRankResponse"]
    assert {"400", "404", "406", "413", "415", "422", "504"} <= set(operation["responses"])
    assert client.get("/docs").status_code == 200


def test_rank_request_id_and_traceparent_are_echoed(client: TestClient, request_body: dict[str, Any]) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = client.post("/v1/rank", json=request_body, headers={"X-Request-ID": "abc-1", "traceparent": trace})
    assert response.headers["x-request-id"] == "abc-1"
    assert response.headers["traceparent"] == trace
    assert response.json()["request_id"] == "r-1"  # the id in the body takes precedence over the header
    del request_body["request_id"]
    response = client.post("/v1/rank", json=request_body, headers={"X-Request-ID": "abc-2"})
    assert response.json()["request_id"] == "abc-2"
    response = client.post("/v1/rank", json=request_body, headers={"X-Request-ID": "line\tbreak"})
    assert response.headers["x-request-id"] == response.json()["request_id"] != "line\tbreak"


def test_rank_with_several_models_needs_a_name_or_a_default(bundle: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        publish(bundle, tmp_path, name)
    with TestClient(create_app(Settings(repository=tmp_path))) as client:
        assert client.post("/v1/rank", json={"items": []}).json()["model"] == "a"  # the first one
    (tmp_path / "repository.json").unlink()
    with TestClient(create_app(Settings(repository=tmp_path))) as client:
        assert client.post("/v1/rank", json={"items": []}).status_code == 404
        assert client.post("/v1/models/b/rank", json={"items": []}).json()["model"] == "b"
    with TestClient(create_app(Settings(repository=tmp_path, default_model="b"))) as client:
        assert client.post("/v1/rank", json={"items": []}).json()["model"] == "b"


def test_create_app_with_an_unusable_repository_raises_bundle_error(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="ranker publish"):
        create_app(Settings(repository=tmp_path / "nowhere"))
    with pytest.raises(BundleError, match="holds no published model"):
        create_app(Settings(repository=tmp_path))
    publish(bundle, tmp_path, "feed")
    with pytest.raises(BundleError, match="no model 'other'"):
        create_app(Settings(repository=tmp_path, default_model="other"))
    weights = tmp_path / "feed" / "1" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"weights\.safetensors was altered"):
        create_app(Settings(repository=tmp_path))


WITHOUT_MODULES = """
import sys

class ImportBlocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[3:]:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, ImportBlocker())
from fastapi.testclient import TestClient
from service.app import create_app
from service.settings import Settings
import json

with TestClient(create_app(Settings(repository=sys.argv[1]))) as client:
    print(json.dumps(client.post("/v1/rank", json=json.loads(sys.argv[2])).json()))
assert not any(name.split(".")[0] in (*sys.argv[3:], "pipelines") for name in sys.modules)
"""


def test_serving_imports_no_library_for_training_nor_pipelines(
    client: TestClient, repository: Path, request_body: dict[str, Any]
) -> None:
    absent = ("torch", "torchrec", "fbgemm_gpu", "sklearn")
    command = [sys.executable, "-c", WITHOUT_MODULES, str(repository), json.dumps(request_body), *absent]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == client.post("/v1/rank", json=request_body).json()
