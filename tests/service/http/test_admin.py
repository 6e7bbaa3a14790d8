"""The repository operations: index, load and release."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ranking.artifacts import checksums, repository
from ranking.artifacts.release import Canary, Release
from service.app import create_app
from service.http.media_types import ARROW
from service.settings import Settings
from tests.support.arrow_streams import send, stream
from tests.support.json_schema import fits

URL = "/v2/repository"


@pytest.fixture
def client(repo: Path) -> Iterator[TestClient]:
    app = create_app(Settings(repository=repo, threads=1, poll_seconds=3600))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def states(client: TestClient, **options: Any) -> dict[str, tuple[str, list[str]]]:
    """Map each version of "feed" to its state and roles."""
    entries = client.post(f"{URL}/index", json=options).json()
    return {entry["version"]: (entry["state"], entry["roles"]) for entry in entries if entry["name"] == "feed"}


def test_index_lists_every_version(client: TestClient) -> None:
    assert client.post(f"{URL}/index").json() == [
        {"name": "feed", "version": "1", "state": "READY", "reason": "", "roles": ["current"]},
        {"name": "feed", "version": "2", "state": "UNAVAILABLE", "reason": "not released", "roles": []},
    ]


def test_index_of_ready_versions_lists_only_these(client: TestClient) -> None:
    assert states(client, ready=True) == {"1": ("READY", ["current"])}


def test_index_gives_the_reason_of_a_rejected_version_without_its_path(client: TestClient, repo: Path) -> None:
    (repo / "feed" / "2" / "SHA256SUMS").write_text("")
    (repo / "feed" / "current.json").write_text('{"version": 2}')
    assert client.post(f"{URL}/models/feed/load").status_code == 409
    entries = client.post(f"{URL}/index").json()
    assert entries[1]["state"] == "UNAVAILABLE"
    assert entries[1]["reason"].startswith("feed/2/")
    assert str(repo) not in json.dumps(entries)
    (repo / "feed" / "current.json").write_text("{")
    assert client.post(f"{URL}/models/feed/load").status_code == 409
    (broken, *_) = client.post(f"{URL}/index").json()
    assert (broken["version"], broken["state"]) == ("", "UNAVAILABLE")
    assert broken["reason"].startswith("feed/current.json is damaged")


def test_index_of_a_missing_repository_is_409(client: TestClient, repo: Path) -> None:
    repo.rename(repo.with_name("gone"))
    response = client.post(f"{URL}/index")
    assert (response.status_code, response.headers["content-type"]) == (409, "application/problem+json")


def test_load_applies_the_current_release(client: TestClient, repo: Path) -> None:
    (repo / "feed" / "current.json").write_text('{"version": 2, "shadow": 1}')
    response = client.post(f"{URL}/models/feed/load")
    assert response.status_code == 200
    assert [(entry["version"], entry["roles"]) for entry in response.json()] == [("1", ["shadow"]), ("2", ["current"])]
    assert client.get("/v2/models/feed").json()["versions"] == ["2", "1"]


def test_load_of_a_damaged_version_is_409_and_keeps_the_old_one(client: TestClient, repo: Path) -> None:
    (repo / "feed" / "2" / "manifest.json").write_text("{}")
    (repo / "feed" / "current.json").write_text('{"version": 2}')
    response = client.post(f"{URL}/models/feed/load")
    assert response.status_code == 409
    assert response.json()["detail"].startswith("feed/2/manifest.json was altered")
    assert client.post("/v1/rank", json={"items": []}).json()["version"] == "1"


def test_load_of_an_unknown_model_is_404(client: TestClient) -> None:
    response = client.post(f"{URL}/models/nope/load")
    assert response.status_code == 404
    assert response.json()["detail"] == "the repository has no model 'nope': it has feed"


def test_release_is_read_and_replaced(client: TestClient, repo: Path) -> None:
    assert client.get(f"{URL}/models/feed/release").json() == {"version": 1}
    release = {"version": 1, "pinned": True, "canary": {"version": 2, "weight": 0.5}}
    response = client.put(f"{URL}/models/feed/release", json=release)
    assert response.status_code == 200
    assert [entry["roles"] for entry in response.json()] == [["current"], ["canary"]]
    assert client.get(f"{URL}/models/feed/release").json() == release
    expected = Release(version=1, pinned=True, canary=Canary(version=2, weight=0.5))
    assert repository.read_release(repo, "feed") == expected


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ('{"version": 9}', 409, "feed has no version 9: it has 1, 2"),
        ('{"version": "2"}', 422, "version: must be an integer"),
        ('{"version": 2, "weight": 1}', 422, "weight: unknown field"),
        ('{"version": 2, "shadow": 2}', 422, "body: version 2 cannot be both the current version and the shadow"),
        ('{"version": 2, "canary": {"version": 1, "weight": 2}}', 422, "canary.weight: must be at most 1"),
        ("{", 400, "not valid JSON"),
        ("", 422, "body: must be an object"),
    ],
)
def test_release_that_is_invalid_is_rejected_and_changes_nothing(
    client: TestClient, repo: Path, body: str, status: int, detail: str
) -> None:
    response = client.put(f"{URL}/models/feed/release", content=body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert detail in response.json()["detail"]
    assert repository.read_release(repo, "feed") == Release(version=1)
    assert states(client)["1"] == ("READY", ["current"])


def test_release_of_a_damaged_version_is_rejected_before_it_is_written(client: TestClient, repo: Path) -> None:
    (repo / "feed" / "2" / "manifest.json").write_text("{}")
    response = client.put(f"{URL}/models/feed/release", json={"version": 2})
    assert (response.status_code, "feed/2/manifest.json was altered" in response.json()["detail"]) == (409, True)
    assert repository.read_release(repo, "feed") == Release(version=1)


def test_release_of_a_version_with_other_golden_scores_is_rejected_before_it_is_written(
    client: TestClient, repo: Path
) -> None:
    shutil.copy(repo / "feed" / "1" / "golden.parquet", repo / "feed" / "2" / "golden.parquet")
    checksums.write_checksums(repo / "feed" / "2")
    for release in ({"version": 2}, {"version": 1, "shadow": 2}, {"version": 1, "canary": {"version": 2, "weight": 0}}):
        response = client.put(f"{URL}/models/feed/release", json=release)
        assert response.status_code == 409
        assert "feed/2: golden rows score differently on onnxruntime" in response.json()["detail"]
        assert repository.read_release(repo, "feed") == Release(version=1)


def test_release_that_cannot_be_written_is_rejected(
    client: TestClient, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target.name == "current.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    response = client.put(f"{URL}/models/feed/release", json={"version": 2})
    assert (response.status_code, "feed/current.json: cannot be written" in response.json()["detail"]) == (409, True)
    assert states(client)["1"] == ("READY", ["current"])


def test_release_of_an_unknown_model_is_404(client: TestClient) -> None:
    assert client.put(f"{URL}/models/nope/release", json={"version": 1}).status_code == 404
    assert client.get(f"{URL}/models/nope/release").status_code == 404
    assert client.put(f"{URL}/models/..%2Ffeed/release", json={"version": 1}).status_code == 404


def test_rank_with_a_version_uses_it_in_any_role(client: TestClient, request_body: dict[str, Any]) -> None:
    client.put(f"{URL}/models/feed/release", json={"version": 1, "shadow": 2})
    responses = {v: client.post(f"/v1/models/feed/versions/{v}/rank", json=request_body).json() for v in ("1", "2")}
    assert [response["version"] for response in responses.values()] == ["1", "2"]
    assert responses["1"]["items"] != responses["2"]["items"]
    assert client.post("/v1/models/feed/versions/3/rank", json=request_body).status_code == 404


def test_canary_ranks_the_same_users_in_json_and_arrow(client: TestClient, request_body: dict[str, Any]) -> None:
    client.put(f"{URL}/models/feed/release", json={"version": 1, "canary": {"version": 2, "weight": 0.5}})
    used = set()
    for user in range(20):
        body = request_body | {"user": {"id": f"u{user}"}}
        responses = [client.post("/v1/rank", json=body | {"request_id": f"r{i}"}).json() for i in range(2)]
        table = send(client, stream({"item_id": ["v1"]}, {"user": {"id": f"u{user}"}}), ARROW)
        versions = {response["version"] for response in responses}
        versions.add(json.loads(table.schema.metadata[b"response"])["version"])
        assert len(versions) == 1
        used |= versions
    assert used == {"1", "2"}


def test_openapi_document_describes_the_repository_operations(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    put = document["paths"][f"{URL}/models/{{model}}/release"]["put"]
    schema = put["requestBody"]["content"]["application/json"]["schema"]
    assert fits({"version": 1, "canary": {"version": 2, "weight": 0.5}}, schema, document)
    assert not fits({"version": "1"}, schema, document)
    assert {"400", "404", "409", "422"} <= set(put["responses"])
    index = document["paths"][f"{URL}/index"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert fits(client.post(f"{URL}/index").json(), index, document)
