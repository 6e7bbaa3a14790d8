"""The examples of docs/open-inference.md are accepted and match the OpenAPI document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.service.http.open_inference.tensor_requests import URL
from tests.support.json_schema import fits

TEXT = (Path(__file__).parents[4] / "docs" / "open-inference.md").read_text()
RESPONSE, ERROR = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))


def operation(document: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = document["paths"]["/v2/models/{model}/infer"]["post"]
    return operation


def test_docs_request_is_accepted_and_matches_its_schema(client: TestClient, document: dict[str, Any]) -> None:
    (example,) = re.findall(r"-d '(.*?)'\n", TEXT, re.DOTALL)
    request = json.loads(example)
    assert fits(request, operation(document)["requestBody"]["content"]["application/json"]["schema"], document)
    response = client.post(URL, content=example)
    assert response.status_code == 200, response.text
    schema = operation(document)["responses"]["200"]["content"]["application/json"]["schema"]
    for body in (response.json(), RESPONSE):
        assert fits(body, schema, document)
        assert body.keys() == RESPONSE.keys()


def test_docs_error_matches_its_schema(document: dict[str, Any]) -> None:
    schema = operation(document)["responses"]["422"]["content"]["application/json"]["schema"]
    assert fits(ERROR, schema, document)
    assert not fits({"detail": "x"}, schema, document)
