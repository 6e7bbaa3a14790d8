"""docs/http.md and /openapi.json say the same as the service does: each example runs and fits its schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from pipelines.jobs.demo import service
from service.http.media_types import ARROW, JSON
from tests.service.test_invalid_requests import INVALID
from tests.support.arrow_streams import send, stream
from tests.support.json_schema import fits

TEXT = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
EXAMPLES: list[dict[str, Any]] = [json.loads(found) for found in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
REQUESTS = [example for example in EXAMPLES if "items" in example and "model" not in example]
ANSWERS = [example for example in EXAMPLES if "model" in example]
PATHS = ["/v1/rank", "/v1/models/{model}/rank", "/v1/models/{model}/versions/{version}/rank"]


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def request_schema(document: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"]["/v1/rank"]["post"]["requestBody"]["content"][JSON]["schema"]
    return schema


def answer_schema(document: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"]["/v1/rank"]["post"]["responses"]["200"]["content"][JSON]["schema"]
    return schema


@pytest.mark.parametrize("path", PATHS)
def test_both_formats_of_bodies_and_answers_are_described(document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    assert set(operation["requestBody"]["content"]) == set(operation["responses"]["200"]["content"]) == {JSON, ARROW}
    assert operation["requestBody"]["required"]


def test_there_are_examples() -> None:
    assert (len(REQUESTS), len(ANSWERS)) == (4, 2)


@pytest.mark.parametrize("example", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_of_the_docs_runs_and_fits_its_schema_and_so_does_its_answer(
    client: TestClient, document: dict[str, Any], example: dict[str, Any]
) -> None:
    assert fits(example, request_schema(document), document)
    response = client.post("/v1/rank", json=example)
    assert response.status_code == 200, response.text
    assert fits(response.json(), answer_schema(document), document)
    assert isinstance(response.json()["items"], dict) == (example.get("layout") == "columns")


@pytest.mark.parametrize("example", ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_of_the_docs_fits_its_schema(document: dict[str, Any], example: dict[str, Any]) -> None:
    assert fits(example, answer_schema(document), document)
    assert not fits(example | {"items": None}, answer_schema(document), document)


def test_the_example_of_the_document_runs(client: TestClient, document: dict[str, Any]) -> None:
    example = document["components"]["schemas"]["RankRequest"]["example"]
    assert fits(example, request_schema(document), document)
    assert client.post("/v1/rank", json=example).status_code == 200


def test_json_of_a_stream_fits_its_schemas(client: TestClient, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    rest = {"user": {"id": "u1"}, "tasks": ["click"], "explain": True}
    assert fits(rest, schemas["RankOptions"], document)
    table = send(client, stream({"item_id": ["v1"]}, rest), ARROW)
    assert fits(json.loads(table.schema.metadata[b"response"]), schemas["RankSummary"], document)


def test_errors_fit_their_schema(client: TestClient, document: dict[str, Any]) -> None:
    for body, _ in INVALID:
        response = client.post("/v1/rank", json=body)
        content = document["paths"]["/v1/rank"]["post"]["responses"][str(response.status_code)]["content"]
        assert fits(response.json(), content["application/problem+json"]["schema"], document)


@pytest.mark.parametrize(
    "wrong", [{}, {"items": "v1"}, {"items": [{"id": 1.5}]}, {"items": [], "top_n": 0}, {"items": [], "itemz": 1}]
)
def test_what_is_refused_does_not_fit(document: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert not fits(wrong, request_schema(document), document)


def test_the_docs_program_runs(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with service(repository) as url:
        names: dict[str, Any] = {}
        exec(compile(program.replace("http://127.0.0.1:8000", url), "docs/http.md", "exec"), names)
    assert isinstance(names["ranked"], pa.Table)
    ids, summary = capsys.readouterr().out.splitlines()
    assert all(item in ids for item in ("v1", "v2", "v3"))
    assert "'model': 'feed'" in summary
