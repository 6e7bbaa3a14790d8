"""docs/http.md and /openapi.json agree with the service: each example is accepted and matches its schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from service.http.media_types import ARROW, JSON
from tests.support.arrow_streams import send, stream
from tests.support.json_schema import fits
from tests.support.ports import HOST
from tests.support.server_thread import server_thread

TEXT = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
EXAMPLES: list[dict[str, Any]] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
REQUESTS = [example for example in EXAMPLES if "items" in example and "model" not in example]
RESPONSES = [example for example in EXAMPLES if "model" in example and "events" not in example]
PATHS = ["/v1/rank", "/v1/models/{model}/rank", "/v1/models/{model}/versions/{version}/rank"]


def request_schema(document: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"]["/v1/rank"]["post"]["requestBody"]["content"][JSON]["schema"]
    return schema


def response_schema(document: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"]["/v1/rank"]["post"]["responses"]["200"]["content"][JSON]["schema"]
    return schema


@pytest.mark.parametrize("path", PATHS)
def test_openapi_document_describes_both_formats_of_requests_and_responses(document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    assert set(operation["requestBody"]["content"]) == set(operation["responses"]["200"]["content"]) == {JSON, ARROW}
    assert operation["requestBody"]["required"]


def test_docs_have_the_expected_number_of_examples() -> None:
    assert (len(REQUESTS), len(RESPONSES)) == (5, 3)


@pytest.mark.parametrize("example", REQUESTS, ids=range(len(REQUESTS)))
def test_docs_example_request_and_its_response_match_their_schemas(
    client: TestClient, document: dict[str, Any], example: dict[str, Any]
) -> None:
    assert fits(example, request_schema(document), document)
    response = client.post("/v1/rank", json=example)
    assert response.status_code == 200, response.text
    assert fits(response.json(), response_schema(document), document)
    assert isinstance(response.json()["items"], dict) == (example.get("layout") == "columns")


@pytest.mark.parametrize("example", RESPONSES, ids=range(len(RESPONSES)))
def test_docs_example_response_matches_its_schema(document: dict[str, Any], example: dict[str, Any]) -> None:
    assert fits(example, response_schema(document), document)
    assert not fits(example | {"items": None}, response_schema(document), document)


def test_openapi_example_request_is_accepted(client: TestClient, document: dict[str, Any]) -> None:
    example = document["components"]["schemas"]["RankRequest"]["example"]
    assert fits(example, request_schema(document), document)
    assert client.post("/v1/rank", json=example).status_code == 200


def test_json_of_streams_matches_its_schemas(client: TestClient, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    options = {"user": {"id": "u1"}, "tasks": ["click"], "explain": True}
    assert fits(options, schemas["RankOptions"], document)
    table = send(client, stream({"item_id": ["v1"]}, options), ARROW)
    assert fits(json.loads(table.schema.metadata[b"response"]), schemas["RankSummary"], document)


@pytest.mark.parametrize(
    "body", [{}, {"items": "v1"}, {"items": [{"id": 1.5}]}, {"items": [], "top_n": 0}, {"items": [], "itemz": 1}]
)
def test_invalid_request_does_not_match_the_schema(document: dict[str, Any], body: dict[str, Any]) -> None:
    assert not fits(body, request_schema(document), document)


def test_docs_program_runs(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with server_thread(repository) as port:
        names: dict[str, Any] = {}
        exec(compile(program.replace("http://127.0.0.1:8000", f"http://{HOST}:{port}"), "docs/http.md", "exec"), names)
    assert isinstance(names["ranked"].table, pa.Table)
    ids, summary = capsys.readouterr().out.splitlines()
    assert all(item in ids for item in ("v1", "v2", "v3"))
    assert summary == "feed 1"
