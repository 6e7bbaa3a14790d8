"""Keys at the door: who is let in, what the others are told, on one port and on two."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.http.auth import key_file
from service.http.auth.key_file import SCOPES
from service.http.auth.middleware import key_from_headers, required_scope
from service.settings import Settings


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def secrets(file: Path) -> dict[str, str]:
    """Scope → a key that has just that; "expired" → one that had all."""
    secrets: dict[str, str] = {scope: key_file.create_key(file, scope, (scope,)) for scope in SCOPES}
    secrets["expired"] = key_file.create_key(file, "expired", SCOPES, datetime.now(UTC) - timedelta(seconds=1))
    return secrets


@pytest.fixture(scope="module")
def guarded(repository: Path, file: Path, secrets: dict[str, str]) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(repository=repository, keys=file)), raise_server_exceptions=False) as client:
        yield client


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


BODY: dict[str, Any] = {"items": {"id": ["v1"]}}


class TestRanking:
    def test_is_for_keys_with_its_scope(self, guarded: TestClient, secrets: dict[str, str]) -> None:
        for headers in (bearer(secrets["rank"]), {"X-API-Key": secrets["rank"]}):
            assert guarded.post("/v1/rank", json=BODY, headers=headers).status_code == 200
            assert guarded.get("/v2/models/feed", headers=headers).status_code == 200

    @pytest.mark.parametrize("path", ["/v1/rank", "/v1/models/nope/rank", "/nowhere", "/metrics/", "//v1/rank"])
    def test_is_not_for_those_without(self, guarded: TestClient, path: str) -> None:
        answer = guarded.post(path, content=b"{", headers={"Content-Type": "application/json"})
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == 'Bearer realm="ranker"'
        assert "send an API key" in answer.json()["detail"]

    @pytest.mark.parametrize(("which", "said"), [("unknown", "not known"), ("expired", "expired on 2")])
    def test_is_not_for_keys_that_do_not_work(
        self, guarded: TestClient, secrets: dict[str, str], which: str, said: str
    ) -> None:
        answer = guarded.post("/v1/rank", json=BODY, headers=bearer(secrets.get(which, "ranker_guess")))
        assert answer.status_code == 401
        assert said in answer.json()["detail"]
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert "ranker_guess" not in answer.text

    @pytest.mark.parametrize("scope", ["feedback", "admin"])
    def test_is_not_for_keys_with_another_scope(self, guarded: TestClient, secrets: dict[str, str], scope: str) -> None:
        answer = guarded.post("/v1/rank", json=BODY, headers=bearer(secrets[scope]))
        assert answer.status_code == 403
        assert answer.json()["detail"] == f"this API key lacks the scope 'rank': it has {scope}"
        assert 'error="insufficient_scope", scope="rank"' in answer.headers["www-authenticate"]

    def test_a_refusal_is_counted_and_echoes_the_request_id(self, repository: Path, file: Path) -> None:
        with TestClient(create_app(Settings(repository=repository, keys=file))) as client:
            answer = client.post("/v1/rank", json=BODY, headers={"X-Request-ID": "r-1"})
            assert answer.headers["x-request-id"] == "r-1"
            assert 'ranker_rejections_total{reason="unauthorised"} 1.0' in client.get("/metrics").text


def test_what_needs_no_key(guarded: TestClient) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/docs", "/openapi.json"):
        assert guarded.get(path).status_code == 200, path


def test_admin_operations_are_for_admins_and_logged_by_the_name_of_the_key(
    guarded: TestClient, secrets: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    path = "/v2/repository/index%0Aforged"
    assert guarded.post(path).status_code == 401
    assert guarded.post(path, headers=bearer(secrets["rank"])).status_code == 403
    with caplog.at_level("INFO", "ranker.service"):
        guarded.post(path, headers=bearer(secrets["admin"]))
    assert r"POST '/v2/repository/index\nforged' by API key admin" in caplog.messages
    assert secrets["admin"] not in caplog.text


def test_a_new_key_works_and_a_revoked_one_stops_without_a_restart(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    old = key_file.create_key(file, "old", ("rank",))
    with TestClient(create_app(Settings(repository=repository, keys=file))) as client:
        assert client.post("/v1/rank", json=BODY, headers=bearer(old)).status_code == 200
        new = key_file.create_key(file, "new", ("rank",))
        key_file.revoke_key(file, "old")
        time.sleep(1.05)
        assert client.post("/v1/rank", json=BODY, headers=bearer(old)).status_code == 401
        assert client.post("/v1/rank", json=BODY, headers=bearer(new)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"authorization", b"Basic eA==")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"bEaReR  k ")], b"k"),
        ([(b"authorization", b"Basic eA=="), (b"x-api-key", b"k")], b"k"),
        ([(b"authorization", b"Bearer b"), (b"x-api-key", b"k")], b"k"),
        ([(b"x-api-key", b"")], b""),
    ],
)
def test_where_a_key_is_looked_for(headers: list[tuple[bytes, bytes]], key: bytes | None) -> None:
    assert key_from_headers(headers) == key


class TestTheDocument:
    def test_says_which_scope_each_operation_needs(self, guarded: TestClient) -> None:
        document = guarded.get("/openapi.json").json()
        assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
        scopes = {
            path: operation.get("security", [{"bearer": [None]}])[0]["bearer"][0]
            for path, operations in document["paths"].items()
            for operation in operations.values()
        }
        assert scopes["/v1/rank"] == scopes["/v2/models/{model}"] == "rank"
        assert scopes["/metrics"] is scopes["/v2/health/ready"] is None
        for path, scope in scopes.items():  # as the guard does, whatever the model is called
            assert required_scope(path.format(model="feed", version="1")) == scope
            guarded_too = document["paths"][path].popitem()[1]["responses"].keys() >= {"401", "403"}
            assert guarded_too == (scope is not None)

    def test_says_nothing_of_keys_where_there_are_none(self, client: TestClient) -> None:
        document = client.get("/openapi.json").json()
        assert "securitySchemes" not in document["components"]
        assert not any("security" in operation for each in document["paths"].values() for operation in each.values())


class TestTwoPorts:
    @pytest.fixture(scope="class")
    @staticmethod
    def ports(repository: Path) -> Iterator[tuple[TestClient, TestClient]]:
        """Clients of the main port and of that of operations."""
        app = create_app(Settings(repository=repository), operations_port=8001)
        with TestClient(app, "http://ranker:8000") as main:
            yield main, TestClient(app, "http://ranker:8001")

    def test_operations_are_on_theirs_and_nowhere_else(self, ports: tuple[TestClient, TestClient]) -> None:
        main, operations = ports
        assert main.post("/v1/rank", json=BODY).status_code == 200
        assert main.get("/metrics").status_code == 404
        assert operations.get("/metrics").status_code == 200
        assert operations.post("/v1/rank", json=BODY).status_code == 404
        assert operations.get("/v2/models/feed").status_code == 404

    def test_health_is_on_both(self, ports: tuple[TestClient, TestClient]) -> None:
        for client in ports:
            assert client.get("/v2/health/live").json() == {"live": True}
            assert client.get("/v2/health/ready").status_code == 200

    def test_metrics_count_what_comes_by_the_other(self, ports: tuple[TestClient, TestClient]) -> None:
        main, operations = ports
        main.post("/v1/models/nope/rank", json=BODY)
        assert 'status="404"' in operations.get("/metrics").text

    def test_each_has_its_own_document(self, ports: tuple[TestClient, TestClient]) -> None:
        main, operations = (set(client.get("/openapi.json").json()["paths"]) for client in ports)
        assert main & operations == {"/v2/health/live", "/v2/health/ready"}
        assert "/metrics" in operations - main
        assert "/v1/rank" in main - operations
