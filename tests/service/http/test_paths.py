"""Hostile model and version names in URLs are rejected, and no file outside the repository is opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.protocol.problems import is_open_inference_path
from tests.support.disclosure import internal_details

NAMES = [
    *("%2e%2e", "%2e", "..%2f..", "..%2F..%2F..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "..%5c..", "feed%2f1"),
    *("%00", "feed%00", "feed%00.json", "feed%0a", "%ff%fe", "%c0%ae%c0%ae", "%25%32%65%25%32%65", "%F0%9F%98%80"),
    *("a" * 5_000, "feed;x=1", "feed.", "FEED", "current.json", "~", "*", "{model}", "%7Bmodel%7D"),
]
VERSIONS = [*NAMES, "0", "-1", "+1", "01", "1.0", "1e0", "%D9%A1", "1_0", "9" * 5_000, "%201", "None", "latest"]

recorded_paths: list[str] | None = None


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and recorded_paths is not None:
        recorded_paths.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def _audit_hook() -> None:
    sys.addaudithook(_record)  # a hook cannot be removed; it does nothing outside ``opened_paths``


@contextmanager
def opened_paths() -> Iterator[list[str]]:
    """Record the files and folders that this process opens in the block."""
    global recorded_paths
    recorded_paths = paths = []
    try:
        yield paths
    finally:
        recorded_paths = None


def operations(client: TestClient) -> list[tuple[str, str]]:
    """Return the method and path of all operations with path parameters."""
    paths = client.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods if "{" in path]


def test_hostile_names_in_urls_are_rejected_without_opening_other_files(client: TestClient, repository: Path) -> None:
    requests = 0
    for method, path in operations(client):
        names = [{"model": name, "version": "1"} for name in NAMES]
        if "{version}" in path:
            names += [{"model": "feed", "version": version} for version in VERSIONS]
        for name in names:
            with opened_paths() as files:
                response = client.request(method, path.format(**name), json={"items": []})
            assert 400 <= response.status_code < 500, (method, path, name, response.text)
            form = "application/json" if is_open_inference_path(path) else "application/problem+json"
            assert response.headers["content-type"] == form
            assert not internal_details(response.text)
            # FastAPI opens the source file of an operation.
            assert not [file for file in files if not file.startswith(str(repository)) and not file.endswith(".py")]
            requests += 1
    assert requests > 100


def test_opened_paths_records_an_opened_file(tmp_path: Path) -> None:
    with opened_paths() as files:
        (tmp_path / "file").write_text("x")
    assert files == [str(tmp_path / "file")]
