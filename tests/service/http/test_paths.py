"""Names in URLs that are meant to lead somewhere else: nothing is found there, and no file is opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.discretion import indiscretions

NAMES = [
    *("%2e%2e", "%2e", "..%2f..", "..%2F..%2F..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "..%5c..", "feed%2f1"),
    *("%00", "feed%00", "feed%00.json", "feed%0a", "%ff%fe", "%c0%ae%c0%ae", "%25%32%65%25%32%65", "%F0%9F%98%80"),
    *("a" * 5_000, "feed;x=1", "feed.", "FEED", "current.json", "~", "*", "{model}", "%7Bmodel%7D"),
]
VERSIONS = [*NAMES, "0", "-1", "+1", "01", "1.0", "1e0", "%D9%A1", "1_0", "9" * 5_000, "%201", "None", "latest"]

watched: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and watched is not None:
        watched.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    sys.addaudithook(_watch)  # stays for ever, and does nothing outside of ``opened``


@contextmanager
def opened() -> Iterator[list[str]]:
    """Files and folders that this process opens meanwhile; FastAPI opens the source of an operation."""
    global watched
    watched = found = []
    try:
        yield found
    finally:
        watched = None


def operations(client: TestClient) -> list[tuple[str, str]]:
    """Method and path of all that takes a name."""
    paths = client.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods if "{" in path]


def test_lead_nowhere(client: TestClient, repository: Path) -> None:
    asked = 0
    for method, path in operations(client):
        names = [{"model": name, "version": "1"} for name in NAMES]
        if "{version}" in path:
            names += [{"model": "feed", "version": version} for version in VERSIONS]
        for name in names:
            with opened() as files:
                response = client.request(method, path.format(**name), json={"items": []})
            assert 400 <= response.status_code < 500, (method, path, name, response.text)
            assert response.headers["content-type"] == "application/problem+json"
            assert not indiscretions(response.text)
            assert not [file for file in files if not file.startswith(str(repository)) and not file.endswith(".py")]
            asked += 1
    assert asked > 100


def test_what_is_opened_is_seen(tmp_path: Path) -> None:
    with opened() as files:
        (tmp_path / "file").write_text("x")
    assert files == [str(tmp_path / "file")]
