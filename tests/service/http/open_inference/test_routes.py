"""Metadata, readiness and inference of the Open Inference Protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from ranking import FrozenRanker
from service.app import create_app
from service.http.auth.keys import create_key
from service.settings import Settings
from tests.service.http.open_inference.tensor_requests import URL, expected, inputs, rank_body, tensor, to_binary


def infer(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"inputs": inputs(), **fields})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def error(client: TestClient, status: int = 422, **fields: Any) -> str:
    response = client.post(URL, json={"inputs": inputs(), **fields})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (message,) = response.json().values()
    return str(message)


def test_server_metadata_names_the_extensions(client: TestClient) -> None:
    metadata = client.get("/v2").json()
    assert (metadata["name"], metadata["extensions"]) == ("dselect-ranker", ["binary_tensor_data"])


@pytest.mark.parametrize("path", ["/v2/models/feed", "/v2/models/feed/versions/1"])
def test_model_metadata_describes_tensors(client: TestClient, ranker: FrozenRanker, path: str) -> None:
    metadata = client.get(path).json()
    tensors = {entry["name"]: entry for entry in metadata["inputs"]}
    assert tensors["item_id"]["shape"] == [-1]
    assert tensors["item_id"]["datatype"] == "BYTES"
    assert tensors["user_id"]["shape"] == [1]
    assert tensors["price"] == {"name": "price", "datatype": "FP64", "shape": [-1], "kind": "numeric", "owner": "item"}
    assert [entry["name"] for entry in metadata["outputs"]] == [*ranker.schema.task_names, "score"]
    assert all((entry["datatype"], entry["shape"]) == ("FP32", [-1]) for entry in metadata["outputs"])


def test_ready_of_versions(client: TestClient) -> None:
    ready = {"name": "feed", "version": "1", "ready": True}
    assert client.get("/v2/models/feed/versions/1/ready").json() == client.get("/v2/models/feed/ready").json() == ready
    response = client.get("/v2/models/feed/versions/9/ready")
    assert response.status_code == 404
    assert response.json() == {"error": "version 9 of 'feed' is not served; served: 1"}


@pytest.mark.parametrize("url", [URL, "/v2/models/feed/versions/1/infer"])
def test_infer_equals_rank_in_the_order_of_the_request(client: TestClient, url: str) -> None:
    ranked = client.post("/v1/rank", json=rank_body()).json()
    response = client.post(url, json={"id": "r-1", "inputs": inputs()}).json()
    assert (response["model_name"], response["model_version"], response["id"]) == ("feed", "1", "r-1")
    assert response["parameters"] == {"degraded": False}
    for output in response["outputs"]:
        assert (output["datatype"], output["shape"]) == ("FP32", [12])
        np.testing.assert_allclose(output["data"], expected(ranked, output["name"]), rtol=0, atol=1e-5)


def test_infer_without_id_returns_none(client: TestClient) -> None:
    assert "id" not in infer(client)


def test_infer_with_nested_data_equals_flat(client: TestClient) -> None:
    nested = inputs()
    nested[1]["data"] = [[value] for value in nested[1]["data"]]
    assert infer(client, inputs=nested) == infer(client)


def test_infer_outputs_select_the_tasks(client: TestClient, ranker: FrozenRanker) -> None:
    task = ranker.schema.task_names[1]
    everything = {output["name"]: output["data"] for output in infer(client)["outputs"]}
    (output,) = infer(client, outputs=[{"name": task}])["outputs"]
    np.testing.assert_allclose(output["data"], everything[task], rtol=0, atol=1e-5)
    names = [output["name"] for output in infer(client, outputs=[{"name": "score"}, {"name": task}])["outputs"]]
    assert names == ["score", task]


def test_infer_objective_parameter_weights_tasks(client: TestClient, ranker: FrozenRanker) -> None:
    task = ranker.schema.task_names[0]
    body = rank_body() | {"objective": {task: 2.0}}
    ranked = client.post("/v1/rank", json=body).json()
    (output,) = infer(client, outputs=[{"name": "score"}], parameters={f"objective.{task}": 2.0})["outputs"]
    np.testing.assert_allclose(output["data"], expected(ranked, "score"), rtol=0, atol=1e-5)


def test_infer_with_binary_data_equals_json(client: TestClient) -> None:
    body, headers = to_binary({"inputs": inputs(), "parameters": {"binary_data_output": True}})
    response = client.post(URL, content=body, headers=headers)
    assert response.headers["content-type"] == "application/octet-stream"
    size = int(response.headers["Inference-Header-Content-Length"])
    document, data = json.loads(response.content[:size]), response.content[size:]
    for output, plain in zip(document["outputs"], infer(client)["outputs"], strict=True):
        scores = np.frombuffer(data[: output["parameters"]["binary_data_size"]], "<f4")
        data = data[len(scores) * 4 :]
        np.testing.assert_allclose(scores, plain["data"], rtol=0, atol=1e-5)
    assert data == b""


def test_infer_binary_data_of_one_output_overrides_the_request(client: TestClient) -> None:
    outputs = [{"name": "score", "parameters": {"binary_data": False}}, {"name": "click"}]
    body = {"inputs": inputs(), "outputs": outputs, "parameters": {"binary_data_output": True}}
    response = client.post(URL, json=body)
    size = int(response.headers["Inference-Header-Content-Length"])
    score, click = json.loads(response.content[:size])["outputs"]
    assert len(score["data"]) == 12
    assert click["parameters"] == {"binary_data_size": 48}


def test_infer_nan_and_null_are_absent_values(client: TestClient) -> None:
    tensors = inputs()
    tensors[1]["data"] = [None] * 12
    absent = infer(client, inputs=tensors)["outputs"]
    assert absent == infer(client, inputs=[*tensors[:1], *tensors[2:]])["outputs"]
    tensors[1]["data"] = [float("nan")] * 12
    body, headers = to_binary({"inputs": tensors})
    assert client.post(URL, content=body, headers=headers).json()["outputs"] == absent
    assert client.post(URL, content=json.dumps({"inputs": tensors})).json()["outputs"] == absent


def test_infer_without_candidates_returns_empty_tensors(client: TestClient) -> None:
    outputs = infer(client, inputs=[tensor("item_id", "BYTES", [])])["outputs"]
    assert all(output["shape"] == [0] and output["data"] == [] for output in outputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": [tensor("price", "FP32", [1.0])]}, "inputs.item_id: is missing: send the ids of the candidates"),
        (
            {"inputs": [*inputs(), tensor("colour", "BYTES", ["red"])]},
            "inputs.colour: unknown tensor: this ranker reads",
        ),
        ({"inputs": [*inputs(), inputs()[1]]}, "inputs.price: is sent twice: send each tensor once"),
        (
            {"inputs": [tensor("item_id", "BYTES", ["v1", "v1"])]},
            "inputs.item_id[1]: candidate 'v1' is already at index 0",
        ),
        (
            {"inputs": [inputs()[0], tensor("price", "FP32", [1.0])]},
            "inputs.price: has the shape [1], but 'item_id' has",
        ),
        ({"inputs": [inputs()[0], tensor("price", "BYTES", ["x"] * 12)]}, "inputs.price[0]: must be a number, not 'x'"),
        ({"inputs": [inputs()[0], tensor("age", "BYTES", ["x"])]}, "inputs.age: must be a number, not 'x'"),
        ({"inputs": [inputs()[0], tensor("hour", "FP32", [0.5])]}, "inputs.hour: must be a 64-bit integer or a string"),
        ({"inputs": [inputs()[0], tensor("hour", "INT64", [1, 2])]}, "send one value, or one per candidate (12)"),
        (
            {"inputs": [inputs()[0], tensor("hour", "INT64", [1] * 11 + [2])]},
            "inputs.hour[11]: differs from the value of",
        ),
        (
            {"inputs": [tensor("item_id", "FP32", [1, 2])]},
            "inputs.item_id: has the data type FP32, but holds ids: send integers or BYTES",
        ),
        (
            {"inputs": [tensor("item_id", "BOOL", [True, False])]},
            "inputs.item_id: has the data type BOOL, but holds ids",
        ),
        ({"inputs": [inputs()[0], tensor("user_id", "BOOL", [True])]}, "inputs.user_id: has the data type BOOL"),
        ({"inputs": [tensor("item_id", "BYTES", ["v1", None])]}, "inputs.item_id[1]: is null: send an id"),
        ({"inputs": [*inputs(), tensor("a\nb", "BYTES", ["red"])]}, r"inputs.a\nb: unknown tensor: this ranker reads"),
        ({"outputs": [{"name": "nope"}]}, "outputs.nope: unknown output: send "),
        ({"outputs": []}, "outputs: must not be empty"),
        ({"outputs": [{"name": "score"}] * 2}, "outputs.score: is requested twice"),
        ({"parameters": {"priority": 1}}, "parameters.priority: unknown parameter: send "),
        (
            {"parameters": {"timeout": "1"}},
            "parameters.timeout: must be an integer from 1 to 86400000000, in microseconds",
        ),
        ({"parameters": {"timeout": 10**400}}, "parameters.timeout: must be an integer from 1 to "),
        ({"parameters": {"x": None}}, "parameters.x: must be true or false, a number or a string"),
        ({"parameters": {"time": "now"}}, "parameters.time: must be a time with a time zone"),
        ({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output: must be true or false"),
        ({"parameters": {"deadline_ms": 0}}, "parameters.deadline_ms: must be at least 0.001"),
        ({"parameters": {"objective.nope": 1.0}}, "parameters.objective.nope: is not among the tasks that"),
        ({"inputs": []}, "inputs: must not be empty"),
        ({"itemz": 1}, "itemz: unknown field"),
    ],
)
def test_infer_invalid_request_is_answered_with_one_line(
    client: TestClient, fields: dict[str, Any], message: str
) -> None:
    line = error(client, **fields)
    assert message in line
    assert "\n" not in line


def test_infer_with_too_many_candidates_is_rejected(client: TestClient) -> None:
    ids = tensor("item_id", "INT64", list(range(201)))
    assert error(client, 413, inputs=[ids]) == "201 candidates: this service ranks at most 200 at a time"


def test_infer_deadlines_apply(client: TestClient) -> None:
    for parameters in ({"deadline_ms": 0.001}, {"timeout": 1}):
        assert "passed before scoring started" in error(client, 504, parameters=parameters)


def test_infer_of_unknown_models_and_methods_has_the_form_of_the_protocol(client: TestClient) -> None:
    response = client.post("/v2/models/nope/infer", json={"inputs": inputs()})
    assert (response.status_code, list(response.json())) == (404, ["error"])
    assert client.get(f"/v2/models/{'n' * 3000}").json()["error"] == f"no model '{'n' * 80}' is served; served: feed"
    assert client.get(URL).status_code == 405
    assert client.get(URL).json() == {"error": "this path does not allow this method: use POST"}


def test_infer_is_counted_and_needs_a_key(repository: Path, tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "app", ("rank",))
    other = create_key(tmp_path / "keys.json", "events", ("feedback",))
    app = create_app(Settings(repository=repository, keys=tmp_path / "keys.json"))
    with TestClient(app) as client:
        assert client.post(URL, json={"inputs": inputs()}).json()["error"].startswith("send an API key")
        assert client.post(URL, json={"inputs": inputs()}, headers={"X-API-Key": other}).status_code == 403
        assert client.post(URL, json={"inputs": inputs()}, headers={"X-API-Key": key}).status_code == 200
        assert 'ranker_requests_total{model="feed",status="200"} 1.0' in client.get("/metrics").text
