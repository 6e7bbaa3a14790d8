"""A ranking request that must be answered."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient


def rank(client: TestClient, body: dict[str, Any], path: str = "/v1/rank", **fields: Any) -> dict[str, Any]:
    """Send a ranking request, with other values of some fields, and return the JSON of its response.

    Raises:
        AssertionError: the status is not 200.
    """
    response = client.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document
